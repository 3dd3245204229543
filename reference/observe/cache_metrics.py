"""Counts and log lines of a cache manager's events; a manager without them pays nothing (V2).

Counters are plain integers. Log lines go to the logger `kvproof.reference` at level DEBUG, with
request and blocks; while DEBUG is off, a line costs one check.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import Admission, AdmitRequest, Refusal, StateUse
from kvproof.reference.core.block_pool import Ids

LOG = logging.getLogger("kvproof.reference")


class CacheMetrics:
    """Attaches to a manager and counts from then on."""

    def __init__(self, manager: CacheManager) -> None:
        self.manager = manager
        self.admitted = 0
        """Requests, resumed ones included."""
        self.refused: Counter[str] = Counter()
        """Reason -> refusals of requests and of their further steps."""
        self.evicted: Counter[int] = Counter()
        """Group -> blocks that lost their content; of state groups, slots or blocks."""
        self.saved = 0
        self.restored = 0
        """Copies of a checkpoint into a state."""
        self.steps_in_flight = 0
        self._states = set(manager.config.layout.states)
        self.evicted_checkpoints = 0
        manager.eviction.on_evicted.append(self._evicted)
        hooks = manager.hooks
        hooks.step_begun.append(self._step_begun)
        hooks.step_ended.append(self._step_ended)
        hooks.admitted.append(self._admitted)
        hooks.extended.append(self._count)

    def _evicted(self, group: int, ids: Ids) -> None:
        gone = [*filter(None, ids)]
        self.evicted[group] += len(gone)
        if group in self._states:
            self.evicted_checkpoints += group == min(self._states)
        if gone and LOG.isEnabledFor(logging.DEBUG):
            LOG.debug("evict group=%d blocks=%s", group, gone)

    def _step_begun(self, step: int) -> None:  # noqa: ARG002 - as the hook calls it
        self.steps_in_flight += 1

    def _step_ended(self, step: int, accepted: Mapping[str, int]) -> None:  # noqa: ARG002 - as above
        self.steps_in_flight -= 1

    def _admitted(self, request: AdmitRequest, answer: Admission | Refusal) -> None:
        if isinstance(answer, Admission):
            self.admitted += 1
            if LOG.isEnabledFor(logging.DEBUG):
                self._log_match(request.id, answer)
        self._count(request.id, answer)

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
