"""The stores below host memory, one after the other: a disk, and a shared store (G7, H6).

Objects evicted from host memory go to all of them, so that other hosts find them before a disk is
full. An object is read from the first store that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvproof.reference.stores.object_store import Bytes, Lease, ObjectStore

HOST, DISK, REMOTE = "host", "disk", "remote"
TIERS = (HOST, DISK, REMOTE)
"""The fastest first."""


class Below:
    """Named stores, the fastest first; without any nothing is kept and nothing is found."""

    def __init__(self, stores: Mapping[str, ObjectStore]) -> None:
        self.stores = dict(stores)

    def store(self, objects: Mapping[bytes, Bytes]) -> frozenset[bytes]:
        """Keep objects in every store; returns the keys that one of them has now."""
        kept = [store.store(objects) for store in self.stores.values()] if objects else []
        return frozenset().union(*kept)

    def where(self, keys: Sequence[bytes]) -> dict[bytes, str]:
        """Name the first store of each object; those that are in none are left out."""
        found: dict[bytes, str] = {}
        for name, store in self.stores.items():
            missing = [key for key in keys if key not in found]
            there = store.lookup(missing) if missing else ()
            found |= {key: name for key, has in zip(missing, there, strict=False) if has}
        return found

    def acquire(self, keys: Sequence[bytes]) -> Lease:
        """Read each object from the first store that has it, and keep all until the release."""
        views: dict[bytes, memoryview] = {}
        leases = []
        for store in self.stores.values():
            missing = [key for key in keys if key not in views]
            if missing:
                leases.append(store.acquire(missing))
                came = zip(missing, leases[-1].views, strict=True)
                views |= {key: view for key, view in came if view is not None}
        return _Joined([views.get(key) for key in keys], leases)

    def drop(self, keys: Sequence[bytes]) -> int:
        """Forget objects everywhere; returns how many of them were somewhere."""
        there = len(self.where(keys))
        for store in self.stores.values():
            store.drop(keys)
        return there


class _Joined(Lease):
    def __init__(self, views: Sequence[memoryview | None], leases: Iterable[Lease]) -> None:
        super().__init__(views)
        self._leases = [*leases]

    def release(self) -> None:
        for lease in self._leases:
            lease.release()
        self._leases.clear()
