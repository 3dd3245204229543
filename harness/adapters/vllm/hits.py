"""The job by which the suite `hits` reaches vLLM's own coordinator. Engine environment only.

Synthetic hashes are put into the block pool's map; `find_longest_cache_hit` of the coordinator that
vLLM makes for the groups answers. Nothing is computed, and no block is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import gcd, lcm
from typing import Any

from kvproof.harness.adapters.vllm.api import new_manager, release
from kvproof.harness.contract.hit_index import answered
from kvproof.harness.contract.target import Group, TargetConfig

_HASH_BYTES = 32
_MOST_BLOCKS = 256
"""Most blocks of all groups for one content; ids only show which block was found."""

_MIXED = ("full", "window")
"""Chunks are refused with unequal blocks; with states, hits may end inside a block."""


def hits(arguments: dict[str, Any]) -> dict[str, Any]:
    """Carry out calls on an index: `traits`, `open`, `hits` (`harness.contract.hit_index`)."""
    traits = {
        "kinds": release().kinds, "drafts": release().draft_groups, "reach": "cached",
        "least_window": 2, "mixed": _MIXED,
    }  # fmt: skip
    return answered(arguments, traits, Index)


class Index:
    """One coordinator; each content is put into an empty map."""

    def __init__(self, groups: list[Group], _variant: str = "") -> None:
        sizes = [group.block_size for group in groups]
        if len({*sizes}) > 1 and not hasattr(_names(), "BlockHashListWithBlockSize"):
            raise NotImplementedError("this release has one block size for all groups")
        config = TargetConfig(_MOST_BLOCKS, lcm(*sizes), groups=tuple(groups))
        self._grain = gcd(*sizes)
        self._sizes = sizes
        manager = new_manager(config, hash_block_size=self._grain)
        self._find = manager.coordinator.find_longest_cache_hit
        self._map = manager.block_pool.cached_block_hash_to_block
        self._blocks = manager.block_pool.blocks
        unit = lcm(*sizes)
        self.hit(unit, [[*range(unit // size)] for size in sizes])  # it may refuse only now

    def hit(self, limit: int, resident: list[list[int]]) -> tuple[int, list[list[int]]]:
        """Return the hit of a prompt of `limit` + 1 tokens, and the blocks that it names."""
        self._map._cache.clear()
        hashes = [at.to_bytes(_HASH_BYTES, "big") for at in range((limit + 1) // self._grain)]
        places: dict[int, int] = {}
        free = iter(self._blocks[1:])
        for group, there in enumerate(resident):
            for at, key in self._keys(hashes, group, there):
                block = next(free)
                places[block.block_id] = at
                self._map.insert(key, block)
        found, hit, *_ = self._find(hashes, limit)
        return int(hit), [[places[b.block_id] for b in each if b.block_id] for each in found]

    def _keys(self, hashes: list[bytes], group: int, there: list[int]) -> Iterator[tuple[int, Any]]:
        """Yield blocks and their keys: of large blocks by vLLM's own view of the hashes."""
        names, size = _names(), self._sizes[group]
        seen = hashes
        if size != self._grain:
            seen = names.BlockHashListWithBlockSize(hashes, self._grain, size)
        for at in there:
            if at < len(seen):
                yield at, names.make_block_hash_with_group_id(seen[at], group)


@cache
def _names() -> Any:
    from vllm.v1.core import kv_cache_utils

    return kv_cache_utils
