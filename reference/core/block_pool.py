"""Free block ids (B1-B3).

A block is free scratch (here), cached (in the prefix index), or scratch held by one request. The
pool hands out ids in bulk and never reads the content of a block.
"""

from __future__ import annotations

from array import array
from typing import TypeAlias

NULL_BLOCK = 0
"""Never handed out, freed, written or cached; padding and holes point at it (B1)."""

Ids: TypeAlias = "array[int]"


class BlockPool:
    """Ids 1 .. num_blocks - 1; the null block is never handed out."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._stack: Ids = array("i", range(num_blocks - 1, NULL_BLOCK, -1))
        """The free ids, then places for those taken: moved only when the pool changes its size."""
        self.num_free = num_blocks - 1

    def allocate(self, count: int) -> Ids:
        """Hand out `count` ids, last freed first, in one call. The caller asked `num_free`."""
        free = self.num_free
        left = free - count
        assert left >= 0, f"allocate {count} of {free} free blocks"
        taken = self._stack[left:free]
        taken.reverse()
        self.num_free = left
        return taken

    def free(self, ids: Ids) -> None:
        """Take back ids that no longer hold anything; `ids` is in chain order (B3)."""
        before = self.num_free
        self.num_free = free = before + len(ids)
        self._stack[before:free] = ids

    def grow(self, num_blocks: int) -> None:
        """Add ids below `num_blocks`; they are handed out when no other one is free (Q6)."""
        more = array("i", range(num_blocks - 1, self.num_blocks - 1, -1))
        self._stack[:0] = more
        self.num_free += len(more)
        self.num_blocks = num_blocks

    def shrink(self, num_blocks: int) -> int:
        """Drop free ids from the largest on, down to `num_blocks` in all; returns how many stay."""
        free = self.free_ids()
        known = set(free)
        while self.num_blocks > num_blocks and self.num_blocks - 1 in known:
            self.num_blocks -= 1
        kept = array("i", [block for block in free if block < self.num_blocks])
        self.num_free = len(kept)
        self._stack = kept + array("i", [NULL_BLOCK]) * (self.num_blocks - 1 - len(kept))
        return self.num_blocks

    def free_ids(self) -> Ids:
        """Return a copy of the free list; the next id to be handed out is the last."""
        return self._stack[: self.num_free]
