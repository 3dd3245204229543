"""The life of a request in transformers' continuous batching, for benchmarks (`target.Cycle`).

The calls of `Scheduler._process_candidates` on its cache: match, room, the blocks that a forward
would complete, their hashes, the end. A request that does not fit makes all blocks without a holder
go, as at the scheduler's safety margin. Engine environment only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from kvproof.harness.adapters.transformers.api import check_drift, new_cache, new_state
from kvproof.harness.contract.target import Cycle, TargetConfig
from kvproof.harness.errors import UnsupportedVerb


class _OneGroup:
    given: ClassVar = {
        "prompt": "list of int",
        "identity": "RequestState, chained hashes of blocks",
        "match, room, registration": (
            "search_prefix_match, can_store_request_tokens, count_new_complete_blocks, "
            "mark_complete_blocks; evict_cached_blocks if there is no room"
        ),
        "tables": "block_table of its allocator",
        "end": "free_blocks",
        "in its favour": "the scheduler and the tensors of a step are left out",
    }

    def __init__(self, config: TargetConfig) -> None:
        self._cache = new_cache(config)
        (self._allocator,) = self._cache.cache_allocators.values()

    def prepare(self, tokens: memoryview) -> list[int]:
        """A list of int."""
        return tokens.tolist()

    def run(self, index: int, prompt: Any) -> tuple[int, Sequence[Any], Sequence[int]]:
        """Match, store, hash, free. Raises MemoryError if it does not fit."""
        cache, name = self._cache, str(index)
        state = new_state(name, prompt)
        hit = cache.search_prefix_match(name, prompt)
        state.position_offset = hit
        count = len(prompt) - hit
        if not cache.can_store_request_tokens(state, count):
            self._make_room(state, count)
        complete = cache.count_new_complete_blocks(state, count)
        state.position_offset += count
        cache.mark_complete_blocks(state, complete)
        table = list(self._allocator.block_table[name])
        cache.free_blocks(name)
        return hit, table, table

    def _make_room(self, state: Any, count: int) -> None:
        self._cache.evict_cached_blocks()
        self._cache.pool.try_to_free_sectors()
        if not self._cache.can_store_request_tokens(state, count):
            raise MemoryError(f"request {state.request_id}: {count} tokens do not fit")

    def lookup(self, prompt: Any) -> int:
        """Hash and match."""
        return len(self._allocator.match_prefix_blocks(prompt)) * int(self._cache.block_size)

    def cached_blocks(self) -> int:
        """Return the number of blocks with a hash that are not held."""
        return len(self._allocator.ledger.cached_blocks)


def make_cycle(config: TargetConfig, variant: str = "") -> Cycle:
    """Build the native cycle; it has no variants."""
    check_drift()
    if variant:
        raise UnsupportedVerb(f"the variant {variant!r}", "its hash map is part of its allocator")
    return _OneGroup(config)
