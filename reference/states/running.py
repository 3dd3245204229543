"""Rows of running requests, and of the draft tokens that they verify (S5, X5)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator

from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.lifecycle import IllegalMove


class RunningStates:
    """At most `most` requests run at once (0: no limit).

    `take()` finds room for one state, or None; `give` takes its ids back; `room()` counts how
    many times in a row `take` would find some.
    """

    def __init__(
        self,
        take: Callable[[], Ids | None],
        give: Callable[[Ids], None],
        room: Callable[[], int],
        *,
        most: int,
    ) -> None:
        self._take = take
        self._give = give
        self._room = room
        self.most = most or sys.maxsize
        self.rows: dict[Hashable, Ids] = {}
        self._drafts: dict[Hashable, list[Ids]] = {}

    def acquire(self, request: Hashable) -> Ids | None:
        """Return the row of a request, its own if it runs already; None: it waits (S5)."""
        ids = self.rows.get(request)
        if ids is None and len(self.rows) < self.most:
            ids = self._take()
            if ids is not None:
                self.rows[request] = ids
        return ids

    def acquire_drafts(self, request: Hashable, count: int) -> list[Ids] | None:
        """Return one more row for each draft token, or None if there are not enough (X5).

        Raises IllegalMove if the request does not run or has such rows already.
        """
        if request not in self.rows or request in self._drafts:
            raise IllegalMove(f"request {request!r}: drafts need one running state and no other")
        if self._room() < count:
            return None
        taken = [ids for ids in (self._take() for _ in range(count)) if ids is not None]
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
            self._give(ids)
        return kept

    def release(self, request: Hashable) -> None:
        """Give back the rows of a request. Idempotent."""
        if request in self._drafts:
            for ids in self._drafts.pop(request):
                self._give(ids)
        running = self.rows.pop(request, None)
        if running is not None:
            self._give(running)

    def ids(self) -> Iterator[Ids]:
        """Yield the ids of each state."""
        yield from self.rows.values()
        for rows in self._drafts.values():
            yield from rows

    def __repr__(self) -> str:
        return f"RunningStates({self.rows}, drafts {self._drafts})"
