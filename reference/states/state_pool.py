"""Where states live: rows of a separate pool (S5), or blocks of the shared pool (S9)."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from typing import Protocol

from kvproof.reference.core.block_pool import Ids


class Home(Protocol):
    """Gives room for one whole state, over all state groups, at a time."""

    @property
    def num_free(self) -> int:
        """States that `take` would find room for now."""

    def take(self) -> Ids | None:
        """Return the ids of one state, or None if there is no room."""

    def take_many(self, count: int) -> list[Ids] | None:
        """Return the ids of `count` states, or None if there is no room for all."""

    def give(self, ids: Ids, /) -> None:
        """Take the ids of one state back; they can be taken again at once."""


class Rows:
    """Rows 1 .. count of a separate pool; row 0 is never handed out, like the null block (B1)."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free: Ids = array("i", range(count, 0, -1))

    @property
    def num_free(self) -> int:
        """Rows that hold neither a running state nor a checkpoint."""
        return len(self._free)

    def take(self) -> Ids | None:
        """Return one row, the last freed first."""
        return array("i", [self._free.pop()]) if self._free else None

    def take_many(self, count: int) -> list[Ids] | None:
        """Return several rows."""
        if len(self._free) < count:
            return None
        return [array("i", [self._free.pop()]) for _ in range(count)]

    def give(self, ids: Ids, /) -> None:
        """Take one row back."""
        self._free.extend(ids)


class Blocks:
    """`width` ordinary blocks, with any ids, for each state.

    `take(count)` hands out blocks, making room in the order of the shared pool if it can, and
    returns None if it cannot. `room()` counts the blocks that it could hand out now. Neither
    counts on checkpoints being evicted: `StateCache` does that when `take` returns None.
    """

    def __init__(
        self,
        width: int,
        *,
        take: Callable[[int], Ids | None],
        give: Callable[[Ids], None],
        room: Callable[[], int],
    ) -> None:
        self.width = width
        self.take = partial(take, width)
        """Returns the blocks of one state."""
        self.give = give
        """Takes the blocks of one state back."""
        self._take = take
        self._room = room

    def take_many(self, count: int) -> list[Ids] | None:
        """Return the blocks of several states."""
        width = self.width
        ids = self._take(count * width)
        if ids is None:
            return None
        return [ids[first : first + width] for first in range(0, count * width, width)]

    @property
    def num_free(self) -> int:
        """States that the shared pool has room for now."""
        return self._room() // self.width
