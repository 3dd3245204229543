"""Explains every hit of a cache manager: what limited it, and by how much (V3).

An `Explainer` stands in front of a manager and keeps beside it what was ever computed. Before an
admission it evaluates the hit that the present content gives with no limit, with the first of
`LIMITS`, the first two, and so on: what one more limit takes is its share. Lifting the last one
gives its share back, then the one before, and so on. A manager without explainer pays nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from numpy.typing import ArrayLike

from kvproof.reference.cache.cache_manager import NO_SPANS, NOTHING, CacheManager
from kvproof.reference.cache.request_state import Admission, Live, Refusal
from kvproof.reference.core.cache_policy import ALLOWED, DISABLED, Access
from kvproof.reference.core.fixpoint import Floor, longest, outside
from kvproof.reference.core.identity import (
    DEFAULT_NAMESPACE,
    Namespace,
    Span,
    Tokens,
    segments,
)
from kvproof.reference.observe.explanation import LIMITS, Explanation
from kvproof.reference.prefix.history_index import GhostIndex

_BEFORE_ADMISSION = len(LIMITS) - 2
"""Limits that the content decides; own pins and access are seen at the admission."""


class Explainer:
    """Answers like the manager behind it, and explains each admission.

    The manager must be new: what was computed before would be unknown.
    """

    def __init__(self, manager: CacheManager) -> None:
        """Raises ValueError for a manager that has served requests."""
        if manager.live or any(True for _ in manager.trie.nodes()):
            raise ValueError("the manager has served requests already; explain a new one")
        self.manager = manager
        self.explanations: list[Explanation] = []
        """One for each admission, in order."""
        self._latest: dict[str, Explanation] = {}
        self._ghost = GhostIndex()
        self._running: dict[int, list[_Computed]] = {}
        self._step = 0

    def __getattr__(self, name: str) -> Any:
        """Everything that is not explained is the manager's own."""
        return getattr(self.manager, name)

    def explain(self, request_id: str) -> Explanation:
        """Return why the last request of this name hit what it did (V3). Raises KeyError."""
        return self._latest[request_id]

    def hit_without(
        self,
        limits: Collection[str],
        tokens: Tokens,
        *,
        namespace: Namespace = DEFAULT_NAMESPACE,
        spans: Sequence[Span] = NO_SPANS,
        access: Access = ALLOWED,
    ) -> int:
        """Return the tokens that a request would hit now if `limits` were lifted (V3).

        Those are the last ones of `LIMITS`, however many: where an earlier one alone is lifted,
        later ones cannot know what would then be there. Own pins are seen at an admission only.
        """
        request = Live("", tokens, namespace, spans, self.manager.residency.unit)
        view = _View(self.manager, self._ghost, request)
        return view.hit([limit for limit in LIMITS if limit not in limits], access)

    # --- what the manager does, watched ---

    def begin_step(self) -> int:
        """See `CacheManager.begin_step`."""
        self._step = self.manager.begin_step()
        self._running[self._step] = []
        return self._step

    def admit(
        self,
        request_id: str,
        tokens: Tokens,
        *,
        namespace: Namespace = DEFAULT_NAMESPACE,
        spans: Sequence[Span] = NO_SPANS,
        compute: int | None = None,
        access: Access = ALLOWED,
        resumed: bool = False,
    ) -> Admission | Refusal:
        """See `CacheManager.admit`; what is admitted is explained (V3)."""
        manager = self.manager
        request = Live(request_id, tokens, namespace, spans, manager.residency.unit)
        lengths = _View(manager, self._ghost, request).lengths()
        answer = manager.admit(
            request_id,
            request.tokens,
            namespace=namespace,
            spans=spans,
            compute=compute,
            access=access,
            resumed=resumed,
        )
        if isinstance(answer, Refusal):
            return answer
        lengths = [max(length, answer.hit) for length in lengths]  # by a partial block (T6)
        pinned = answer.hit if answer.access.read else lengths[-1]
        self._keep(
            Explanation(
                request_id,
                request.prompt,
                (*lengths, pinned, answer.hit),
                manager.residency.unit,
                answer.access.reason,
                resumed,
                partial_blocks=manager.config.cache_partial_blocks,
            )
        )
        self._watch(request_id, answer)
        return answer

    def _keep(self, explanation: Explanation) -> None:
        self.explanations.append(explanation)
        self._latest[explanation.request] = explanation

    def extend(
        self,
        request_id: str,
        tokens: Tokens = (),
        *,
        compute: int | None = None,
        drafts: Tokens = (),
    ) -> Admission | Refusal:
        """See `CacheManager.extend`."""
        answer = self.manager.extend(request_id, tokens, compute=compute, drafts=drafts)
        if isinstance(answer, Admission):
            self._watch(request_id, answer)
        return answer

    def _watch(self, request_id: str, answer: Admission) -> None:
        """Remember what the newest step computes."""
        request, states = self.manager.live[request_id], self.manager.states
        due: list[int] = []
        if states and answer.state:
            due = states.due(request, answer.start, answer.stop)
        saved = {tokens for tokens, _ in answer.state.saves} if answer.state else set()
        self._running[self._step].append(
            _Computed(request, answer.stop, request.drafts, [(at, at in saved) for at in due])
        )

    def end_step(
        self,
        step: int,
        *,
        accepted: Mapping[str, int] = NOTHING,
        experts: Mapping[str, ArrayLike] = NOTHING,
    ) -> None:
        """See `CacheManager.end_step`; what it computed can be reused from now on (V3)."""
        self.manager.end_step(step, accepted=accepted, experts=experts)
        for computed in self._running.pop(step):
            request, drafts = computed.request, computed.drafts
            current = request.epoch == self.manager.epoch and not request.released
            if current and request.access.write:
                kept = accepted.get(request.id, drafts)
                self._remember(computed, computed.stop - drafts + kept)

    def _remember(self, computed: _Computed, stop: int) -> None:
        request, ghost = computed.request, self._ghost
        fine = segments(request.spans, 1)
        ghost.store(request.namespace, request.tokens, fine, stop)
        for tokens, saved in computed.states:
            ghost.mark(ghost.store(request.namespace, request.tokens, fine, tokens), saved=saved)

    def reset(self) -> None:
        """See `CacheManager.reset`: what was computed so far can not be reused (H6)."""
        self.manager.reset()
        self._ghost = GhostIndex()


class _Computed(NamedTuple):
    """What a step computes of one request."""

    request: Live
    stop: int
    drafts: int
    states: list[tuple[int, bool]]
    """(tokens, saved): the state after so many is worth a checkpoint; whether there was room."""


class _View:
    """What one request finds now: optimum, match and floors."""

    def __init__(self, manager: CacheManager, ghost: GhostIndex, request: Live) -> None:
        residency = manager.residency
        self._manager, self._residency, self._request = manager, residency, request
        self._unit, self._ghost = residency.unit, ghost
        most = max(0, request.prompt - 1)
        fine = segments(request.spans, 1)
        self._known = ghost.longest(request.namespace, request.tokens, fine, most)
        self._aligned = self._known.tokens // self._unit * self._unit
        self._match = residency.trie.match(
            request.namespace, request.tokens, request.segments, most // self._unit
        )
        self._with_tail = 0
        if residency.tails is not None:  # no limit takes what a partial block gives (T6)
            self._with_tail = manager.hits.find(request, most).tokens(self._unit)

    def lengths(self) -> list[int]:
        """Return the optimum, and what is left after each limit that the content decides."""
        names = list(LIMITS)[:_BEFORE_ADMISSION]
        asked = {"alignment", "eviction", *(name for name, _ in self._floors(0))}
        lengths = [self._known.tokens]
        for count, name in enumerate(names, 1):
            lengths.append(self._longest(names[:count]) if name in asked else lengths[-1])
        return lengths

    def hit(self, applied: Collection[str], access: Access) -> int:
        """Return the hit under some limits only."""
        if not self._manager.config.enable_prefix_caching:
            access = DISABLED
        return self._longest(applied) if access.read or "access" not in applied else 0

    def _longest(self, applied: Collection[str]) -> int:
        limit = self._aligned
        if "eviction" in applied and self._residency.row_width:
            limit = self._match.units * self._unit
        floors = [floor for name, floor in self._floors(limit) if name in applied]
        length = longest(limit, floors)
        whole = length == self._aligned and "alignment" not in applied
        return self._known.tokens if whole else max(length, self._with_tail)

    def _floors(self, limit: int) -> Iterator[tuple[str, Floor]]:
        """Name what lowers a length of at most `limit` tokens."""
        unit, spans = self._unit, self._request.spans
        if spans:
            free = outside(spans)
            yield "span", lambda length: free(length) // unit * unit
        layout = self._manager.config.layout
        if any(group.draft and group.kind != "state" for group in layout.groups):
            yield "draft", lambda length: min(length, max(0, limit - unit))
        if self._match.node is not None:
            for name, floor in self._manager.hits.floors(self._match.node, limit, ()):
                if name in ("window", "chunk", "experts"):
                    yield name, floor
        if self._residency.marks is not None:
            yield from self._checkpoints()

    def _checkpoints(self) -> Iterator[tuple[str, Floor]]:
        ghost, marks, node = self._ghost, self._residency.marks, self._match.node
        known = self._known.node
        yield "no_checkpoint", lambda length: ghost.floor(known, length, saved=False)
        yield "no_row", lambda length: ghost.floor(known, length, saved=True)
        matched = self._match.units * self._unit  # what lies behind it in `node` is not its own
        if node is None or marks is None:
            yield "checkpoint_evicted", lambda _: 0
        else:
            yield "checkpoint_evicted", lambda length: marks.floor(node, min(length, matched))
