"""Reading from tiers: requested objects may arrive later, in part, or never (C8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvproof.reference.stores.object_store import Lease


class Fetch(Protocol):
    """Objects on their way."""

    def poll(self) -> Lease | None:
        """Return the objects that have come, None while more may come; may block briefly.

        A view of the lease is None where an object is gone or could not be read. The caller
        that gets the lease releases it.
        """

    def cancel(self) -> None:
        """Cancel the fetch; a caller that stops polling need not release it."""


class Source(Protocol):
    """Where objects come from."""

    def where(self, keys: Sequence[bytes]) -> list[str | None]:
        """Name the tier of each object, None if there is none; changes nothing (T1)."""

    def fetch(self, keys: Sequence[bytes]) -> Fetch:
        """Begin to read objects."""


class Store(Protocol):
    """The part of a tier that `Direct` needs."""

    def where(self, keys: Sequence[bytes]) -> list[str | None]:
        """See `Source`."""

    def acquire(self, keys: Sequence[bytes]) -> Lease:
        """See `ObjectStore`."""


class Direct:
    """A `Source` that reads at once, so that decisions depend on no clock (C7)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.where = store.where

    def fetch(self, keys: Sequence[bytes]) -> Fetch:
        """See `Source`."""
        return _Here(self._store.acquire(keys))


class _Here:
    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def poll(self) -> Lease:
        return self._lease

    def cancel(self) -> None:
        self._lease.release()
