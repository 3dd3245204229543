"""Recurrent states as in vLLM (`mamba_cache_mode="align"`). Engine environment only."""

from __future__ import annotations

import os
from functools import cache
from types import SimpleNamespace
from typing import Any

from kvproof.harness.contract.target import StateUse, Table, TargetConfig

_UNLIMITED = 1 << 30


class States:
    """Step ends and state blocks for one configuration."""

    def __init__(self, config: TargetConfig) -> None:
        self._groups = [g for g, group in enumerate(config.layout) if group.kind == "state"]
        self._size = config.block_size
        drafts = any(group.draft for group in config.layout)
        cached = self._groups and config.prefix_caching
        self._scheduler = _scheduler(config.block_size, drafts=drafts) if cached else None

    def clipped(self, native: Any, hit: int, left: int, compute: int | None) -> int:
        """Return the tokens of a step that may take `compute` of the `left` ones (all: None).

        A limit below one block is raised to the block's end: the engine would wait for more.
        """
        count = left if compute is None else min(left, compute)
        if self._scheduler is None or count < 1:
            return count
        split = _scheduler_class()._mamba_block_aligned_split
        found = int(split(self._scheduler, native, count, hit))
        start = native.num_computed_tokens + hit
        return found or min(left, self._size - start % self._size)

    def uses(self, tables: tuple[Table, ...], start: int, stop: int) -> tuple[StateUse, ...]:
        """The worker moves the state if the step's last token is in another block."""
        uses = []
        for group in self._groups:
            table = tables[group]
            read = (table[(start - 1) // self._size],) if start else ()
            uses.append(StateUse(group, read, ((stop, (table[(stop - 1) // self._size],)),)))
        return tuple(uses)


@cache
def _scheduler_class() -> Any:
    """Imported for configurations with states only: the import takes seconds."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm.v1.core.sched.scheduler import Scheduler

    return Scheduler


def _scheduler(block_size: int, *, drafts: bool) -> SimpleNamespace:
    """A stand-in for the scheduler: the fields that its rule reads, one block size, no limit."""
    return SimpleNamespace(
        cache_config=SimpleNamespace(block_size=block_size),
        block_size=block_size,
        hash_block_size=block_size,
        use_eagle=drafts,
        use_eagle_block_drop=drafts,
        num_hash_lookahead_tokens=0,
        mamba_partial_cache_hit=False,
        mamba_has_prefill_checkpoint_blocks=False,
        mamba_prefill_checkpoint_alignment=None,
        mamba_shared_prefix_checkpoint=False,
        max_num_scheduled_tokens=_UNLIMITED,
        scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
    )
