"""Which bytes of the arena are taken (G8): exact best fit, free neighbours joined at once."""

from __future__ import annotations

from bisect import bisect_left, insort

GRANULE = 64
"""Bytes; a cache line, so that two writers never share one."""


class Allocator:
    """Extents of one range of bytes.

    An operation costs a bisection over the distinct sizes of free extents, fewer than the square
    root of twice the granules. Allocation fails only if no free extent is large enough; a size that
    does not fit after all evictions would fit no other allocator.
    """

    def __init__(self, size: int) -> None:
        self.size = size - size % GRANULE
        self.taken: dict[int, int] = {}
        """Offset -> bytes, whole granules."""
        self.used = 0
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._by_size: dict[int, dict[int, None]] = {}
        self._sizes: list[int] = []
        """Sizes of free extents, in order, each once."""
        if self.size:
            self._free(0, self.size)

    @property
    def largest(self) -> int:
        """Bytes of the largest free extent."""
        return self._sizes[-1] if self._sizes else 0

    def take(self, size: int) -> int | None:
        """Return the offset of as many bytes, in the smallest free extent that has them."""
        need = rounded(size)
        at = bisect_left(self._sizes, need)
        if at == len(self._sizes):
            return None
        found = self._sizes[at]
        start = next(reversed(self._by_size[found]))
        self._unfree(start, found)
        if found > need:
            self._free(start + need, found - need)
        self.taken[start] = need
        self.used += need
        return start

    def give(self, start: int) -> None:
        """Take an extent back. Raises KeyError if none begins there."""
        size = self.taken.pop(start)
        self.used -= size
        after, before = self._starts.get(start + size), self._ends.get(start)
        if after is not None:
            self._unfree(start + size, after)
            size += after
        if before is not None:
            self._unfree(before, start - before)
            start, size = before, size + start - before
        self._free(start, size)

    def _free(self, start: int, size: int) -> None:
        self._starts[start], self._ends[start + size] = size, start
        if size not in self._by_size:
            self._by_size[size] = {}
            insort(self._sizes, size)
        self._by_size[size][start] = None

    def _unfree(self, start: int, size: int) -> None:
        del self._starts[start], self._ends[start + size]
        same = self._by_size[size]
        del same[start]
        if not same:
            del self._by_size[size]
            del self._sizes[bisect_left(self._sizes, size)]


def rounded(size: int) -> int:
    """Return bytes in whole granules, at least one."""
    return max(GRANULE, -(-size // GRANULE) * GRANULE)
