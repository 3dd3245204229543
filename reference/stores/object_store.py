"""Bytes by content: the interface of host memory, a disk, a cache server and a shared store.

An object is the content of one chunk, or of one part of one unit, as flat bytes. Its key is a
digest of everything that determines it (H6), so objects are never changed, only stored and dropped,
whichever process stored them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeAlias

Bytes: TypeAlias = bytes | bytearray | memoryview
KEY_BYTES = 32


class StoreUnavailable(Exception):
    """A remote store did not answer, or refused; the message gives the reason."""


class StoreStatus(NamedTuple):
    """Resident objects; sizes in bytes of payload."""

    objects: int
    bytes: int
    capacity: int
    """0: not bounded by this store."""
    pinned: int
    """Objects under a lease."""


class Lease:
    """Objects that stay as they are until `release`; idempotent, also at the end of `with`."""

    def __init__(self, views: Sequence[memoryview | None]) -> None:
        self.views = tuple(views)
        """In the order of the keys, read-only; None: not there."""

    def release(self) -> None:
        """Let the objects go; the views must not be read any more."""
        for view in self.views:
            if view is not None:
                view.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class ObjectStore(Protocol):
    """Each object is whole under its key, or absent (G7). Remote ones raise StoreUnavailable."""

    def store(self, objects: Mapping[bytes, Bytes]) -> frozenset[bytes]:
        """Keep copies of objects; returns the keys that are resident now.

        The least recently used go to make room, but no leased ones and none of the call itself.
        Objects without room are left out.
        """

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """Return which objects are resident; changes nothing, also not the order of eviction."""

    def acquire(self, keys: Sequence[bytes]) -> Lease:
        """Read objects, and keep them until the lease is released."""

    def drop(self, keys: Iterable[bytes]) -> int:
        """Forget objects, those under a lease when it ends; returns how many were there."""

    def clear(self) -> int:
        """Forget all of this store's objects (H6); returns how many there were."""

    def status(self) -> StoreStatus:
        """Count the stored objects and their bytes."""
