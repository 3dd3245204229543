"""Handles of a client: room to write objects, and objects to read (G7, G8)."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Self

from kvproof.reference.cache_server import messages as m
from kvproof.reference.cache_server.connection import Connection, Session
from kvproof.reference.cache_server.windows import Window, end, window
from kvproof.reference.stores.object_store import Lease


class Reservation:
    """Objects to be written in place; the end of `with` commits them, an error gives them back."""

    def __init__(
        self,
        connection: Connection,
        session: Session,
        reserved: m.Reserved,
        arena: memoryview,
        sizes: Mapping[bytes, int],
        *,
        verify: bool,
    ) -> None:
        self._connection, self._session, self._batch = connection, session, reserved.batch
        self._verify = verify
        self._keys = list(sizes)
        outcomes = dict(zip(self._keys, reserved.places, strict=True))
        self._windows = {
            key: window(arena, place.offset, sizes[key])
            for key, place in outcomes.items()
            if place.outcome == "granted"
        }
        self.views = {key: each.view for key, each in self._windows.items()}
        """Writable; unreadable for others until the commit, gone with it."""
        self.present = frozenset(k for k, place in outcomes.items() if place.outcome == "present")
        """There already, and held until the commit."""
        self.refused = {
            key: place.outcome
            for key, place in outcomes.items()
            if place.outcome not in ("granted", "present")
        }
        """`busy`: another client is writing it; `full`: there is no room."""
        self.stored: frozenset[bytes] = frozenset()
        """After the commit: the objects that are there."""
        session.open[self._batch] = self

    def commit(self, written: Collection[bytes] | None = None) -> frozenset[bytes]:
        """Publish the written objects, all by default, and give the rest back (G7).

        All copies into the views must be complete. Returns the objects that exist now. Raises
        BufferError, and commits nothing, while an array over a view is alive. After CacheServerGone
        the outcome is unknown, and nothing stays reserved.
        """
        if self._batch not in self._session.open:
            return self.stored
        keys = [key for key in self.views if written is None or key in written]
        sums = [zlib.crc32(self.views[key]) for key in keys] if self._verify else []
        self.let_go()
        position = {key: at for at, key in enumerate(self._keys)}
        request = m.Commit(self._batch, [position[key] for key in keys], sums)
        try:
            reply = self._connection.call(request, session=self._session)
        except BaseException:  # it may never have left, and then only this gives the bytes back
            self._connection.give_back(self._session, m.Abort(self._batch))
            raise
        if isinstance(reply, m.Flags):
            there = zip(self._keys, reply.flags, strict=True)
            self.stored = frozenset(key for key, flag in there if flag)
        return self.stored

    def release(self) -> None:
        """Give everything back; nothing after a commit."""
        if self._batch in self._session.open:
            self.let_go()
            self._connection.give_back(self._session, m.Abort(self._batch))

    def let_go(self) -> None:
        """From here on nothing of this process writes to the views."""
        end(self._windows.values())
        self._session.open.pop(self._batch, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.commit()
        else:
            self.release()


class HeldLease(Lease):
    """A lease of the server's; the views end before it does."""

    def __init__(
        self,
        windows: Sequence[Window | None],
        connection: Connection,
        session: Session,
        number: int,
    ) -> None:
        super().__init__([each.view if each else None for each in windows])
        self._windows = [each for each in windows if each]
        self._connection, self._session, self._number = connection, session, number
        session.open[number] = self

    def release(self) -> None:
        """See Lease. Raises BufferError, and keeps the lease, while an array is alive."""
        if self._number in self._session.open:
            self.let_go()
            self._connection.give_back(self._session, m.Release([self._number]))

    def let_go(self) -> None:
        """From here on nothing of this process reads the views."""
        end(self._windows)
        self._session.open.pop(self._number, None)


class HeldLeases(Lease):
    """Several leases as one, in order."""

    def __init__(self, leases: Sequence[HeldLease]) -> None:
        super().__init__([view for lease in leases for view in lease.views])
        self._leases = leases

    def release(self) -> None:
        """See HeldLease."""
        for lease in self._leases:
            lease.release()
