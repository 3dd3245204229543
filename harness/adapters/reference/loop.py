"""The reference's scheduler without a model, for benchmarks (`contract.loop`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kvproof.harness.contract.loop import LoopConfig
from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.identity import DEFAULT_NAMESPACE
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.engine.request_queue import Prompt
from kvproof.reference.engine.scheduler import Scheduler
from kvproof.reference.model.interface import Sample, Work

_TOKEN = 7
_NO_EXPERTS = np.empty((0, 0, 0), np.int64)
_SAMPLED = Sample(_TOKEN, 0, (), _NO_EXPERTS)
_GOES_ON = Sample(None, 0, (), _NO_EXPERTS)

Plan = tuple[int, Sequence[Work]]


class SchedulerLoop:
    """See `contract.loop.Loop`."""

    def __init__(self, config: LoopConfig) -> None:
        cache = CacheConfig(
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            max_requests=config.requests,
        )
        self._cache = CacheManager(cache)
        self._scheduler = Scheduler(
            self._cache, EngineConfig(cache, max_batch_tokens=config.budget)
        )

    def prepare(self, tokens: memoryview) -> list[int]:
        """A list, as a tokenizer returns."""
        return tokens.tolist()

    def submit(self, name: str, prompt: list[int], answers: int) -> None:
        """As the engine does. Raises MemoryError if it can never fit."""
        if refusal := self._scheduler.add(Prompt(name, tuple(prompt), answers, DEFAULT_NAMESPACE)):
            raise MemoryError(f"request {name}: {refusal}")

    def schedule(self) -> Plan | None:
        """Decide; the decisions of the step before are not read."""
        self._scheduler.decisions.clear()
        return self._scheduler.schedule()

    def answer(self, plan: Plan) -> Mapping[str, Sample]:
        """A token for each request whose known tokens are computed."""
        return {each.request_id: _SAMPLED if each.samples else _GOES_ON for each in plan[1]}

    def complete(self, plan: Plan, answer: Mapping[str, Sample]) -> list[str]:
        """Apply."""
        return [each.id for each in self._scheduler.complete(plan[0], answer) if each.done]

    def cached_blocks(self) -> int:
        """Without a holder."""
        return self._cache.usage().cached


def make_loop(config: LoopConfig) -> SchedulerLoop:
    """Build the loop."""
    return SchedulerLoop(config)
