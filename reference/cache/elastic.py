"""Pools that grow and shrink while requests run, down to the blocks that are held (Q6)."""

from __future__ import annotations

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.holders import holders
from kvproof.reference.core.cache_config import MOST_IDS
from kvproof.reference.core.validation import require, whole


def resize(manager: CacheManager, num_blocks: int) -> int:
    """Give the pool `num_blocks` blocks, the null block included; returns how many it has then.

    The largest ids go. Where one of them is held, the pool ends with it; cached blocks leave in the
    order of eviction, one by one, until the others are free. The configuration keeps the number
    that the pool began with. Raises ConfigError for a number that no pool has.
    """
    whole("num_blocks", num_blocks, least=2, example=1024)
    ratio = max(group.kernel_ratio for group in manager.config.layout.groups)
    rule = f"at most {MOST_IDS // ratio}: ids of kernel blocks are int32"
    require(num_blocks <= MOST_IDS // ratio, "num_blocks", num_blocks, rule, 1024)
    pool = manager.pool
    if num_blocks >= pool.num_blocks:
        pool.grow(num_blocks)
    else:
        least = max(num_blocks, max(holders(manager), default=0) + 1)
        while pool.shrink(least) > least and manager.evict(1):
            pass
    manager.capacity.resized(pool.num_blocks)
    return pool.num_blocks
