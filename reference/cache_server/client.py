"""The store that an engine uses: objects in the memory of a cache server (G7, G8).

    with connect("ipc:///run/user/1000/kvproof-cache", namespace=weights) as store:
        with store.reserve({key: size}) as room:
            for key, view in room.views.items():
                pages.copy_to(view)          # straight into the shared object
        lease = store.acquire([key])         # views into the same memory

Threads may share a client; a child of a fork makes its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from kvproof.reference.cache_server import messages as m
from kvproof.reference.cache_server.arena import ArenaLost
from kvproof.reference.cache_server.connection import (
    CacheServerRefused,
    Connection,
    Session,
    as_mapped,
)
from kvproof.reference.cache_server.process import this_process
from kvproof.reference.cache_server.report import Report
from kvproof.reference.cache_server.reservation import HeldLease, HeldLeases, Reservation
from kvproof.reference.cache_server.windows import Window, window
from kvproof.reference.stores.object_store import Bytes, Lease, StoreStatus

if TYPE_CHECKING:
    from kvproof.reference.cache_server.link import Link

R = TypeVar("R")


def connect(
    address: str,
    *,
    token: str = "",
    namespace: str = "",
    layout: bytes = b"",
    timeout: float = 5.0,
    verify: bool = False,
    on_map: Callable[[memoryview], object] = as_mapped,
) -> CacheClient:
    """Return a client of the server at an address; nothing is sent before its first call.

    `namespace` and `layout`: see `Hello`. `timeout`: seconds without an answer until the server
    counts as gone. `verify`: write checksums, and read nothing with a wrong one. `on_map`: called
    with each newly mapped memory; its result lives as long as views into that memory
    (`transfer.pinned.Pinned`, for a GPU). Raises ImportError without the extra `server`, and
    ValueError for a malformed address.
    """
    from kvproof.reference.cache_server.link import ZmqLink

    link = ZmqLink(address)
    return CacheClient(
        link, token=token, namespace=namespace, layout=layout, timeout=timeout, verify=verify,
        on_map=on_map,
    )  # fmt: skip


class CacheClient:
    """An ObjectStore; every call may raise CacheServerGone and CacheServerRefused.

    After a server was lost, the next call finds the one that took its place, which is empty;
    leases of before go on showing the bytes that they showed.
    """

    def __init__(
        self,
        link: Link,
        *,
        token: str = "",
        namespace: str = "",
        layout: bytes = b"",
        timeout: float = 5.0,
        verify: bool = False,
        on_map: Callable[[memoryview], object] = as_mapped,
    ) -> None:
        hello = m.Hello(token, this_process(), namespace, layout)
        self._connection = Connection(link, hello, timeout=timeout, on_map=on_map)
        self._verify = verify

    def store(self, objects: Mapping[bytes, Bytes]) -> frozenset[bytes]:
        """See ObjectStore; objects beyond `sessions.MOST_HELD` are not stored."""
        data = {key: memoryview(each).cast("B") for key, each in objects.items()}
        rooms: list[Reservation] = []
        try:
            with _up_to_the_limit():
                for part in _chunks(data):
                    rooms += [self.reserve({key: len(data[key]) for key in part})]
            for room in rooms:
                for key, view in room.views.items():
                    view[:] = data[key]
            return frozenset[bytes]().union(*[room.commit() for room in rooms])
        finally:
            for room in rooms:
                room.release()

    def reserve(self, sizes: Mapping[bytes, int]) -> Reservation:
        """Reserve room for objects, to be written and committed; `sizes` are bytes.

        At most `messages.MOST_KEYS` objects. Does not wait: an object has no view if there is no
        room, or if another client is writing it.
        """
        request = m.Reserve(list(sizes), list(sizes.values()))
        session, arena, reply = self._bound(request, m.Reserved)
        return Reservation(self._connection, session, reply, arena, sizes, verify=self._verify)

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """See ObjectStore."""
        return [
            flag
            for part in _chunks(keys)
            for flag in self._call(m.Lookup(part), m.Flags).flags
        ]  # fmt: skip

    def acquire(self, keys: Sequence[bytes]) -> Lease:
        """See ObjectStore; the views are into the memory of the server."""
        leases: list[HeldLease] = []
        try:
            leases.extend(self._acquire(part) for part in _chunks(keys))
        except BaseException:
            for lease in leases:
                lease.release()
            raise
        return leases[0] if len(leases) == 1 else HeldLeases(leases)

    def _acquire(self, keys: list[bytes]) -> HeldLease:
        session, arena, reply = self._bound(m.Acquire(keys), m.Leased)
        windows: list[Window | None] = [None] * len(keys)
        try:
            for at, extent in enumerate(reply.extents):
                if extent is not None:
                    seen = window(arena, extent.offset, extent.size)
                    seen = seen._replace(view=seen.view.toreadonly())
                    windows[at] = seen if self._is_intact(keys[at], seen.view, extent) else None
        except BaseException:
            self._connection.give_back(session, m.Release([reply.lease]))
            raise
        return HeldLease(windows, self._connection, session, reply.lease)

    def drop(self, keys: Iterable[bytes]) -> int:
        """See ObjectStore; objects that are being written are dropped too."""
        return sum(self._call(m.Drop(part), m.Count).count for part in _chunks(keys))

    def clear(self) -> int:
        """Forget all objects of the namespace (H6); returns how many there were."""
        count, left = 0, 1
        while left:
            cleared = self._call(m.Clear(), m.Cleared)
            count, left = count + cleared.count, cleared.left
        return count

    def pin(self, name: str, keys: Iterable[bytes]) -> list[bool]:
        """Keep objects from being evicted until `unpin`, also when this client is gone.

        False: not there, or the pins of all clients have their share of the memory.
        """
        parts = _chunks(keys)
        return [flag for part in parts for flag in self._call(m.Pin(name, part), m.Flags).flags]

    def unpin(self, name: str) -> int:
        """Give up what a name keeps; returns how many objects that were."""
        return self._call(m.Unpin(name), m.Count).count

    def status(self) -> StoreStatus:
        """Count the objects of the namespace; the capacity is that of all namespaces."""
        report = self.report()
        return StoreStatus(
            report.space_objects, report.space_payload, report.capacity, report.space_leased
        )  # fmt: skip

    def report(self) -> Report:
        """Return the counts of the server."""
        return self._call(m.Status(), m.StatusReply).report

    def heartbeat(self) -> None:
        """Report that this client lives; needed between two calls that are `patience` apart."""
        self._call(m.Heartbeat(), m.Count)

    def close(self) -> None:
        """End the session. Raises BufferError while an array over a view is alive."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, request: m.Request, kind: type[R]) -> R:
        reply = self._connection.call(request)
        assert isinstance(reply, kind)
        return reply

    def _bound(self, request: m.Request, kind: type[R]) -> tuple[Session, memoryview, R]:
        while True:
            session = self._connection.session()
            with suppress(ArenaLost):  # the next session is with another server, if there is one
                arena = self._connection.arena(session)
                reply = self._connection.call(request, session=session)
                if reply is not None:
                    assert isinstance(reply, kind)
                    return session, arena, reply

    def _is_intact(self, key: bytes, view: memoryview, extent: m.Extent) -> bool:
        """Drop an object whose checksum is wrong."""
        if not self._verify or extent.checksum in (None, zlib.crc32(view)):
            return True
        self.drop([key])
        return False


@contextmanager
def _up_to_the_limit() -> Iterator[None]:
    try:
        yield
    except CacheServerRefused as refused:
        if refused.reason != "limit":
            raise


def _chunks(keys: Iterable[bytes]) -> Iterator[list[bytes]]:
    source = iter(keys)
    while part := list(islice(source, m.MOST_KEYS)):
        yield part
