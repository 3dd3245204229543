"""Slots of states: where they lie (S5, S9), and the ones that running requests have (X5)."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Protocol

from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.lifecycle import IllegalMove


class StateHome(Protocol):
    """Gives room for one whole state, over all state groups, at a time."""

    @property
    def num_free(self) -> int:
        """States that `allocate` would find room for now."""

    def allocate(self) -> Ids | None:
        """Return the ids of one state, or None if there is no room."""

    def allocate_many(self, count: int) -> list[Ids] | None:
        """Return the ids of `count` states, or None if there is no room for all."""

    def free(self, ids: Ids, /) -> None:
        """Take the ids of one state back; they can be taken again at once."""


class SlotPool:
    """Slots 1 .. count of a separate pool; slot 0 is never handed out, like the null block (B1)."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free: Ids = array("i", range(count, 0, -1))

    @property
    def num_free(self) -> int:
        """Slots that hold neither a running state nor a checkpoint."""
        return len(self._free)

    def allocate(self) -> Ids | None:
        """Return one slot, the last freed first."""
        return array("i", [self._free.pop()]) if self._free else None

    def allocate_many(self, count: int) -> list[Ids] | None:
        """Return several slots."""
        if len(self._free) < count:
            return None
        return [array("i", [self._free.pop()]) for _ in range(count)]

    def free(self, ids: Ids, /) -> None:
        """Take one slot back."""
        self._free.extend(ids)


class SharedBlocks:
    """`width` ordinary blocks, with any ids, for each state.

    `allocate(count)` hands out blocks, making room in the order of the shared pool if it can, and
    returns None if it cannot. `room()` counts the blocks that it could hand out now. Neither
    counts on checkpoints being evicted: `StateCache` does that when `allocate` returns None.
    """

    def __init__(
        self,
        width: int,
        *,
        allocate: Callable[[int], Ids | None],
        free: Callable[[Ids], None],
        room: Callable[[], int],
    ) -> None:
        self.width = width
        self.allocate = partial(allocate, width)
        self.free = free
        self._allocate = allocate
        self._room = room

    def allocate_many(self, count: int) -> list[Ids] | None:
        """Return the blocks of several states."""
        width = self.width
        ids = self._allocate(count * width)
        if ids is None:
            return None
        return [ids[first : first + width] for first in range(0, count * width, width)]

    @property
    def num_free(self) -> int:
        """States that the shared pool has room for now."""
        return self._room() // self.width


class RunningStates:
    """At most `most` requests run at once (0: no limit).

    `allocate()` finds room for one state, or None; `free` takes its ids back; `room()` counts how
    many times in a row `allocate` would find some.
    """

    def __init__(
        self,
        allocate: Callable[[], Ids | None],
        free: Callable[[Ids], None],
        room: Callable[[], int],
        *,
        most: int,
    ) -> None:
        self._allocate = allocate
        self._free = free
        self._room = room
        self.most = most or sys.maxsize
        self.rows: dict[Hashable, Ids] = {}
        self._drafts: dict[Hashable, list[Ids]] = {}

    def acquire(self, request: Hashable) -> Ids | None:
        """Return the row of a request, its own if it runs already; None: it waits (S5)."""
        ids = self.rows.get(request)
        if ids is None and len(self.rows) < self.most:
            ids = self._allocate()
            if ids is not None:
                self.rows[request] = ids
        return ids

    def acquire_drafts(self, request: Hashable, count: int) -> list[Ids] | None:
        """Return a row per draft, or None (X5). Raises IllegalMove if not running or repeated."""
        if request not in self.rows or request in self._drafts:
            raise IllegalMove(f"request {request!r}: drafts need one running state and no other")
        if self._room() < count:
            return None
        taken = [ids for ids in (self._allocate() for _ in range(count)) if ids is not None]
        assert len(taken) == count, "room was counted before"
        self._drafts[request] = taken
        return taken

    def keep_draft(self, request: Hashable, accepted: int) -> Ids:
        """Make the state after `accepted` drafts the running one; the other rows go back (X5).

        Raises IllegalMove if the request has no such draft row.
        """
        rows = [self.rows[request], *self._drafts[request]] if request in self._drafts else []
        if not 0 <= accepted < len(rows):
            raise IllegalMove(f"request {request!r}: keep draft {accepted} of {len(rows)} rows")
        del self._drafts[request]
        kept = self.rows[request] = rows.pop(accepted)
        for ids in rows:
            self._free(ids)
        return kept

    def release(self, request: Hashable) -> None:
        """Give back the rows of a request. Idempotent."""
        if request in self._drafts:
            for ids in self._drafts.pop(request):
                self._free(ids)
        running = self.rows.pop(request, None)
        if running is not None:
            self._free(running)

    def ids(self) -> Iterator[Ids]:
        """Yield the ids of each state."""
        yield from self.rows.values()
        for rows in self._drafts.values():
            yield from rows

    def __repr__(self) -> str:
        return f"RunningStates({self.rows}, drafts {self._drafts})"
