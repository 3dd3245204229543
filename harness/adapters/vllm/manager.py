"""One `KVCacheManager` of vLLM, with one interface for all releases. Engine environment only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from kvproof.harness.adapters.vllm.api import engine, has, new_manager, release
from kvproof.harness.contract.target import HitStatistics, Retained, Table, TargetConfig


class Match(NamedTuple):
    """The hit of a request."""

    blocks: Any
    hit: int
    junction: int = 0
    """The divergence point, where other requests share more than the hit; 0: not reported."""


class Manager:
    """The calls and reads of vLLM's scheduler; blocks are ids, null is 0."""

    def __init__(self, config: TargetConfig, grain: int) -> None:
        self._manager = new_manager(config, hash_block_size=grain)
        self.pool = self._manager.block_pool
        self._statistics = HitStatistics(0, 0)

    def begin_step(self) -> None:
        """Begin a scheduler step, for recurrent states."""
        if has("KVCacheManager.new_step_starts"):
            self._manager.new_step_starts()

    def match(self, request: Any) -> Match:
        """Look for the hit of an admission; until 0.23 that counts in the statistics."""
        return Match(*self._manager.get_computed_blocks(request))

    def peek(self, request: Any) -> int:
        """Look for the hit alone."""
        if has("KVCacheManager.record_prefix_cache_stats"):
            return self.match(request).hit
        if not self._manager.enable_caching or not _may_read(request):
            return 0
        find = self._manager.coordinator.find_longest_cache_hit
        return int(find(request.block_hashes, request.num_tokens - 1)[1])

    def admit(self, request: Any, count: int, found: Match) -> bool:
        """Allocate the first step of a request; whether there was room."""
        whole = {"full_sequence_must_fit": True} if release().whole_request else {}
        blocks, hit, _ = found
        return self._manager.allocate_slots(request, count, hit, blocks, **whole) is not None

    def extend(self, request: Any, count: int) -> bool:
        """Allocate a later step; whether there was room."""
        return self._manager.allocate_slots(request, count) is not None

    def copies(self) -> tuple[list[Any], list[Any]]:
        """Take the copies that the step begins with, and the blocks held until they are done."""
        if not has("KVCacheManager.take_kv_cache_block_copies"):
            return [], []
        copies, endpoints = self._manager.take_kv_cache_block_copies()
        return copies, endpoints

    def return_skipped(self, request: Any) -> None:
        """Give back the blocks that are out of view, as the request's next step would begin."""
        owner = self._manager
        if not has("KVCacheManager.remove_skipped_blocks"):
            owner = self._manager.coordinator
        owner.remove_skipped_blocks(request.request_id, request.num_computed_tokens)

    def tables(self, request: Any) -> tuple[Table, ...]:
        """Return the blocks of each group."""
        return tuple(map(tuple, self._manager.get_block_ids(request.request_id)))

    def free(self, request: Any) -> None:
        """Give back everything that a request holds."""
        self._manager.free(request)

    def evict(self, ids: Iterable[int]) -> None:
        """Take the identity of blocks."""
        self._manager.evict_blocks(set(ids))

    def reset(self) -> bool:
        """Clear the prefix cache; whether the engine allowed it."""
        return bool(self._manager.reset_prefix_cache())

    def count(self, request: Any, hit: int) -> None:
        """Record an admission, where matching did not."""
        if has("KVCacheManager.record_prefix_cache_stats"):
            self._manager.record_prefix_cache_stats(request, hit)

    def statistics(self) -> HitStatistics:
        """Return the totals of the engine's per-step counters."""
        new, old = self._manager.make_prefix_cache_stats(), self._statistics
        self._statistics = HitStatistics(
            old.queries + new.queries,
            old.hits + new.hits,
            (old.resumed_queries or 0) + getattr(new, "preempted_queries", 0),  # not in 0.11.0
            (old.resumed_hits or 0) + getattr(new, "preempted_hits", 0),
        )
        return self._statistics

    def idle(self) -> list[Any]:
        """Return the free queue, next to go first."""
        return list(self.pool.free_block_queue.get_all_free_blocks())

    def index(self) -> list[tuple[Any, list[int]]]:
        """Return the cached hashes with the blocks under each, as a lookup prefers them."""
        found = self.pool.cached_block_hash_to_block._cache
        return sorted((key, _block_ids(blocks)) for key, blocks in found.items())

    def retained(self, group: int, size: int) -> Retained:
        """Tokens under the keys of a group with blocks of `size`, and the ids in its records."""
        keys = self.pool.cached_block_hash_to_block._cache
        blocks = sum(group_of(key) == group for key in keys)
        coordinator = self._manager.coordinator
        owners = (self._manager, coordinator, *coordinator.single_type_managers)
        records = [table for owner in owners for table in vars(owner).values()]
        ids = [name for table in records if isinstance(table, (dict, set)) for name in table]
        return Retained(blocks * size, len({name for name in ids if isinstance(name, str)}))


def group_of(block_hash: Any) -> int:
    """Return the group that a block with this hash belongs to."""
    return int(engine().get_group_id(block_hash))


def _may_read(request: Any) -> bool:
    return not getattr(request, "skip_reading_prefix_cache", False)  # not there in 0.11.0


def _block_ids(found: Any) -> list[int]:
    return list(found) if isinstance(found, dict) else [found.block_id]
