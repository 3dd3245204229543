"""Counts and logs what a cache manager does; a manager that nobody observes pays nothing (V2).

Counters are plain integers. Log lines go to the logger `kvproof.reference` at level DEBUG, with
request and blocks; while it is off, a line costs one question.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike

from kvproof.reference.cache.cache_manager import NO_SPANS, NOTHING, CacheManager
from kvproof.reference.cache.request_state import Admission, Refusal, StateUse
from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.cache_policy import ALLOWED, Access
from kvproof.reference.core.identity import DEFAULT_NAMESPACE, Namespace, Span, Tokens

LOG = logging.getLogger("kvproof.reference")


class Observed:
    """Answers like the manager behind it, and counts."""

    def __init__(self, manager: CacheManager) -> None:
        self.manager = manager
        self.admitted = 0
        """Requests, resumed ones included."""
        self.refused: Counter[str] = Counter()
        """Reason -> refusals of requests and of their further steps."""
        self.evicted: Counter[int] = Counter()
        """Group -> blocks that lost what they held; of state groups, rows or blocks."""
        self.saved = 0
        """States saved as checkpoints."""
        self.restored = 0
        """Copies of a checkpoint into a state."""
        self.steps_in_flight = 0
        self._states = set(manager.config.layout.states)
        self.evicted_checkpoints = 0
        self._heard_before = manager.residency.on_drop
        manager.residency.on_drop = self._drop

    def __getattr__(self, name: str) -> Any:
        """Everything that is not counted is the manager's own."""
        return getattr(self.manager, name)

    def _drop(self, group: int, ids: Ids) -> None:
        if self._heard_before is not None:
            self._heard_before(group, ids)
        gone = [*filter(None, ids)]
        self.evicted[group] += len(gone)
        if group in self._states:
            self.evicted_checkpoints += group == min(self._states)
        if gone and LOG.isEnabledFor(logging.DEBUG):
            LOG.debug("evict group=%d blocks=%s", group, gone)

    def begin_step(self) -> int:
        """See `CacheManager.begin_step`."""
        self.steps_in_flight += 1
        return self.manager.begin_step()

    def end_step(
        self,
        step: int,
        *,
        accepted: Mapping[str, int] = NOTHING,
        experts: Mapping[str, ArrayLike] = NOTHING,
    ) -> None:
        """See `CacheManager.end_step`."""
        self.manager.end_step(step, accepted=accepted, experts=experts)
        self.steps_in_flight -= 1

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
        """See `CacheManager.admit`."""
        answer = self.manager.admit(
            request_id,
            tokens,
            namespace=namespace,
            spans=spans,
            compute=compute,
            access=access,
            resumed=resumed,
        )
        if isinstance(answer, Admission):
            self.admitted += 1
            if LOG.isEnabledFor(logging.DEBUG):
                self._log_match(request_id, answer)
        self._count(request_id, answer)
        return answer

    def _log_match(self, request_id: str, answer: Admission) -> None:
        config = self.manager.config
        blocks = answer.table[: answer.hit // config.layout.unit * config.layout.full.width]
        LOG.debug(
            "match request=%s hit=%d access=%s blocks=%s",
            request_id,
            answer.hit,
            answer.access.reason,
            blocks.tolist(),
        )

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
        self._count(request_id, answer)
        return answer

    def _count(self, request_id: str, answer: Admission | Refusal) -> None:
        if isinstance(answer, Refusal):
            self.refused[answer.reason] += 1
        elif answer.state is not None:
            self._count_states(request_id, answer.start, answer.state)

    def _count_states(self, request_id: str, start: int, state: StateUse) -> None:
        self.restored += state.restore is not None
        self.saved += len(state.saves)
        if not LOG.isEnabledFor(logging.DEBUG):
            return
        if state.restore:
            LOG.debug(
                "restore request=%s tokens=%d from=%s to=%s",
                request_id,
                start,
                *(ids.tolist() for ids in state.restore),
            )
        for tokens, saved in state.saves:
            LOG.debug("save request=%s tokens=%d to=%s", request_id, tokens, saved.tolist())
