"""Explains every hit of a cache manager: its limits and their effect (V3).

An `Explainer` is attached to a manager and indexes everything that was ever computed. Before an
admission it evaluates the hit that the present content gives with no limit, with the first of
`LIMITS`, the first two, and so on; the loss by one more limit is its share. If limits are lifted,
the last one gives its share back first. A manager without explainer has no cost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from kvproof.reference.cache.cache_manager import NO_SPANS, CacheManager
from kvproof.reference.cache.hit_length import Clamp, fixpoint, outside_spans
from kvproof.reference.cache.request_state import (
    Admission,
    AdmitRequest,
    Refusal,
    RequestState,
)
from kvproof.reference.core.cache_policy import ALLOWED, DISABLED, Access
from kvproof.reference.core.identity import (
    DEFAULT_NAMESPACE,
    Namespace,
    Span,
    Tokens,
    segments,
)
from kvproof.reference.observe.explanation import LIMITS, Explanation
from kvproof.reference.prefix.infinite_cache import InfiniteCacheIndex

_BEFORE_ADMISSION = len(LIMITS) - 2
"""Limits that the content decides; own pins and access are seen at the admission."""


class Explainer:
    """Attaches to a new manager, and explains each admission from then on."""

    def __init__(self, manager: CacheManager) -> None:
        """Raises ValueError for a manager that has served requests: their content is unknown."""
        if manager.live or any(True for _ in manager.trie.nodes()):
            raise ValueError("the manager has served requests already; explain a new one")
        self.manager = manager
        self.explanations: list[Explanation] = []
        self._latest: dict[str, Explanation] = {}
        self._known_index = InfiniteCacheIndex()
        self._running: dict[int, list[_Computed]] = {}
        self._step = 0
        self._lengths: list[int] = []
        """Lengths of the admission under way: see `_View.lengths`."""
        hooks = manager.hooks
        hooks.before_admission.insert(0, self._before_admission)  # before tiers load anything
        hooks.admitted.append(self._admitted)
        hooks.extended.append(self._watch)
        hooks.step_begun.append(self._step_begun)
        hooks.step_ended.append(self._step_ended)
        hooks.reset.append(self._reset)

    def explain(self, request_id: str) -> Explanation:
        """Return the explanation of the last request of this name (V3). Raises KeyError."""
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
        request = RequestState("", tokens, namespace, spans, self.manager.eviction.unit)
        view = _View(self.manager, self._known_index, request)
        return view.hit([limit for limit in LIMITS if limit not in limits], access)

    # --- hooks of the manager ---

    def _step_begun(self, step: int) -> None:
        self._step = step
        self._running[step] = []

    def _before_admission(self, asked: AdmitRequest, request: RequestState) -> None:  # noqa: ARG002 - as the hook calls it
        self._lengths = _View(self.manager, self._known_index, request).lengths()

    def _admitted(self, asked: AdmitRequest, answer: Admission | Refusal) -> None:
        """Explain an admission (V3)."""
        if isinstance(answer, Refusal):
            return
        manager = self.manager
        lengths = [max(length, answer.hit) for length in self._lengths]  # by a partial block (T6)
        pinned = answer.hit if answer.access.read else lengths[-1]
        explanation = Explanation(
            asked.id,
            manager.live[asked.id].prompt,
            (*lengths, pinned, answer.hit),
            manager.eviction.unit,
            answer.access.reason,
            asked.resumed,
            partial_blocks=manager.config.cache_partial_blocks,
        )
        self.explanations.append(explanation)
        self._latest[asked.id] = explanation
        self._watch(asked.id, answer)

    def _watch(self, request_id: str, answer: Admission | Refusal) -> None:
        if isinstance(answer, Refusal):
            return
        request, states = self.manager.live[request_id], self.manager.states
        due: list[int] = []
        if states and answer.state:
            due = states.due(request, answer.start, answer.stop)
        saved = {tokens for tokens, _ in answer.state.saves} if answer.state else set()
        self._running[self._step].append(
            _Computed(request, answer.stop, request.drafts, [(at, at in saved) for at in due])
        )

    def _step_ended(self, step: int, accepted: Mapping[str, int]) -> None:
        """The tokens of the step can be reused from now on (V3)."""
        for computed in self._running.pop(step):
            request, drafts = computed.request, computed.drafts
            current = request.epoch == self.manager.epoch and not request.released
            if current and request.access.write:
                kept = accepted.get(request.id, drafts)
                self._remember(computed, computed.stop - drafts + kept)

    def _reset(self) -> None:
        """Nothing computed so far can be reused (H6)."""
        self._known_index = InfiniteCacheIndex()

    def _remember(self, computed: _Computed, stop: int) -> None:
        request, known = computed.request, self._known_index
        fine = segments(request.spans, 1)
        known.store(request.namespace, bytes(request.tokens), fine, stop)
        for tokens, saved in computed.states:
            known.mark(
                known.store(request.namespace, bytes(request.tokens), fine, tokens), saved=saved
            )


class _Computed(NamedTuple):
    request: RequestState
    stop: int
    drafts: int
    states: list[tuple[int, bool]]
    """(tokens, saved): the state after so many is worth a checkpoint; whether there was room."""


class _View:
    def __init__(
        self, manager: CacheManager, known: InfiniteCacheIndex, request: RequestState
    ) -> None:
        eviction = manager.eviction
        self._manager, self._eviction, self._request = manager, eviction, request
        self._unit, self._index = eviction.unit, known
        most = max(0, request.prompt - 1)
        fine = segments(request.spans, 1)
        self._known = known.longest(request.namespace, bytes(request.tokens), fine, most)
        self._aligned = self._known.tokens // self._unit * self._unit
        self._match = eviction.trie.match(
            request.namespace, bytes(request.tokens), request.segments, most // self._unit
        )
        self._with_tail = 0
        if eviction.partial is not None:  # no limit takes what a partial block gives (T6)
            self._with_tail = manager.hits.find(request, most).tokens(self._unit)

    def lengths(self) -> list[int]:
        """Return the optimum, and the length after each limit that the content decides."""
        names = list(LIMITS)[:_BEFORE_ADMISSION]
        asked = {"alignment", "eviction", *(name for name, _ in self._clamps(0))}
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
        if "eviction" in applied and self._eviction.row_width:
            limit = self._match.units * self._unit
        clamps = [clamp for name, clamp in self._clamps(limit) if name in applied]
        length = fixpoint(limit, clamps)
        whole = length == self._aligned and "alignment" not in applied
        return self._known.tokens if whole else max(length, self._with_tail)

    def _clamps(self, limit: int) -> Iterator[tuple[str, Clamp]]:
        unit, spans = self._unit, self._request.spans
        if spans:
            free = outside_spans(spans)
            yield "span", lambda length: free(length) // unit * unit
        layout = self._manager.config.layout
        if any(group.draft and group.kind != "state" for group in layout.groups):
            yield "draft", lambda length: min(length, max(0, limit - unit))
        if self._match.node is not None:
            for name, clamp in self._manager.hits.clamps(self._match.node, limit, ()):
                if name in ("window", "chunk", "experts"):
                    yield name, clamp
        if self._eviction.checkpoints is not None:
            yield from self._checkpoints()

    def _checkpoints(self) -> Iterator[tuple[str, Clamp]]:
        index, checkpoints, node = self._index, self._eviction.checkpoints, self._match.node
        known = self._known.node
        yield "no_checkpoint", lambda length: index.clamp(known, length, saved=False)
        yield "no_row", lambda length: index.clamp(known, length, saved=True)
        matched = self._match.units * self._unit  # later units of `node` are not its own
        if node is None or checkpoints is None:
            yield "checkpoint_evicted", lambda _: 0
        else:
            yield "checkpoint_evicted", lambda length: checkpoints.clamp(node, min(length, matched))
