"""LMDeploy's native life of a request, for benchmarks (`target.Cycle`).

One turn of its prefill scheduler, which matches in the trie, allocates and registers; then the
tables, the end of the step and the end of the session. One group of full attention. Engine
environment only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvproof.harness.adapters.lmdeploy.api import check_drift, new_scheduler
from kvproof.harness.contract.target import Cycle, TargetConfig
from kvproof.harness.errors import UnsupportedVerb


class _OneGroup:
    def __init__(self, config: TargetConfig) -> None:
        self._scheduler = new_scheduler(config)

    def prepare(self, tokens: memoryview) -> Any:
        """A list of int, as its tokenizer returns."""
        return tokens.tolist()

    def run(self, index: int, prompt: Any) -> tuple[int, Sequence[int], Sequence[int]]:
        """Schedule, end the step, end the session. Raises MemoryError if it does not fit."""
        scheduler, session = self._scheduler, index + 1
        sequence = scheduler.add_session(session).add_sequence(prompt)
        chosen = scheduler.schedule(is_prefill=True).running
        if not chosen:
            raise MemoryError(f"request {index} of {len(prompt)} tokens does not fit")
        scheduler.activate_seqs(chosen)
        hit = int(sequence.num_history_ids)
        table = scheduler.get_block_tables([sequence])[0].tolist()
        sequence.set_step(len(prompt))
        scheduler.end_session(session)
        return hit, table, table

    def cached_blocks(self) -> int:
        """Blocks of the trie that no sequence holds."""
        manager = self._scheduler.block_manager
        return int(manager.num_gpu_blocks - 1 - manager.get_num_free_gpu_blocks())


def make_cycle(config: TargetConfig, variant: str = "") -> Cycle:
    """Build the native cycle; it has no variants."""
    check_drift()
    if config.groups:
        raise UnsupportedVerb("make_cycle with groups", "one group of full attention is driven")
    if variant:
        raise UnsupportedVerb(f"the variant {variant!r}", "its scheduler calls the trie itself")
    return _OneGroup(config)
