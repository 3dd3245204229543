"""LMDeploy's native life of a request, for benchmarks (`target.Cycle`).

One turn of its prefill scheduler, which matches in the trie, allocates and registers; then the
tables, the end of the step and the end of the session. With states the input maker's and the
loop's calls on checkpoints come in their order; the whole prompt is one step, so a state is saved
at its end only. Engine environment only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvproof.harness.adapters.lmdeploy.api import check_drift, new_scheduler, release
from kvproof.harness.adapters.lmdeploy.releases import STATES, Checkpoints
from kvproof.harness.contract.target import Cycle, TargetConfig
from kvproof.harness.errors import UnsupportedVerb

_RUNNING = 10
"""State rows of requests, the reserved and the spare one included."""


class _OneGroup:
    steps = "Scheduler.schedule, activate_seqs, set_step"

    def __init__(self, config: TargetConfig) -> None:
        self._scheduler = new_scheduler(config, max(0, config.state_rows - _RUNNING))
        self.given = {
            "prompt": "list of int",
            "identity": "hashes of blocks in the trie",
            "match, room, registration": self.steps,
            "tables": "get_block_tables",
            "end": "end_session",
            "in its favour": "no input maker, no engine loop around the scheduler",
        }

    def prepare(self, tokens: memoryview) -> Any:
        """A list of int, as its tokenizer returns."""
        return tokens.tolist()

    def run(self, index: int, prompt: Any) -> tuple[int, Sequence[Any], Sequence[int]]:
        """Schedule, end the step, end the session. Raises MemoryError if it does not fit."""
        sequence = self._scheduled(index, prompt)
        hit = int(sequence.num_history_ids)
        table = self._table(sequence)
        sequence.set_step(len(prompt))
        self._scheduler.end_session(index + 1)
        return hit, table, table

    def _scheduled(self, index: int, prompt: Any) -> Any:
        scheduler = self._scheduler
        sequence = scheduler.add_session(index + 1).add_sequence(prompt)
        chosen = scheduler.schedule(is_prefill=True).running
        if not chosen:
            raise MemoryError(f"request {index} of {len(prompt)} tokens does not fit")
        scheduler.activate_seqs(chosen)
        return sequence

    def _table(self, sequence: Any) -> list[int]:
        table: list[int] = self._scheduler.get_block_tables([sequence])[0].tolist()
        return table

    def cached_blocks(self) -> int:
        """Blocks of the trie that no sequence holds."""
        manager = self._scheduler.block_manager
        return int(manager.num_gpu_blocks - 1 - manager.get_num_free_gpu_blocks())


class _States(_OneGroup):
    serves_groups = True
    steps = (
        "Scheduler.schedule, activate_seqs, pin_restores, reserve_save, publish_saves, "
        "unpin_restores, unpin_saves, set_step"
    )

    def __init__(self, config: TargetConfig) -> None:
        super().__init__(config)
        self._checkpoints = Checkpoints(self._scheduler)

    def run(self, index: int, prompt: Any) -> tuple[int, Sequence[Any], Sequence[int]]:
        """As with one group; the state after the prompt becomes a checkpoint."""
        sequence, checkpoints = self._scheduled(index, prompt), self._checkpoints
        hit = int(sequence.num_history_ids)
        checkpoints.restore(sequence)
        checkpoints.save(sequence, len(prompt))
        table = self._table(sequence)
        tables = [table, [int(sequence.logical_state)]]
        checkpoints.ran(sequence)
        sequence.set_step(len(prompt))
        self._scheduler.end_session(index + 1)
        return hit, tables, table


def make_cycle(config: TargetConfig, variant: str = "") -> Cycle:
    """Build the native cycle; it has no variants."""
    check_drift()
    kinds = [group.kind for group in config.groups]
    if kinds and (kinds != ["full", "state"] or release() < STATES):
        raise UnsupportedVerb(
            f"make_cycle with groups {', '.join(kinds)}", "full, or full and state from 0.14 on"
        )
    if variant:
        raise UnsupportedVerb(f"the variant {variant!r}", "its scheduler calls the trie itself")
    return _States(config) if kinds else _OneGroup(config)
