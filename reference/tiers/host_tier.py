"""Objects in host memory: bounded, least recently used first, fixed while they are read (G7, H6).

    store --> resident --evict--> the stores below, if there are any
                 ^                    |
                 +------ acquire -----+

Objects found below come up as they are acquired. Nothing depends on a clock or on the bytes of a
key: equal calls have equal results (C7).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

from kvproof.reference.stores.object_store import Bytes, Lease, ObjectStore, StoreStatus
from kvproof.reference.tiers.below import HOST, Below
from kvproof.reference.tiers.counts import TierCounts

NOTHING: Mapping[str, ObjectStore] = {}


class _Object:
    """One resident object; it leaves memory when it is forgotten and its last lease has ended."""

    __slots__ = ("data", "pins", "resident", "size")

    def __init__(self, data: Bytes, size: int) -> None:
        self.data = data
        self.size = size
        self.pins = 0
        self.resident = True
        """Whether it is found; it may be read for longer."""


class HostLease(Lease):
    """Pins its objects, here and below."""

    def __init__(
        self,
        tier: HostTier,
        views: Sequence[memoryview | None],
        pinned: Sequence[_Object],
        below: Lease,
    ) -> None:
        super().__init__(views)
        self._tier, self._pinned, self._below = tier, pinned, below

    def release(self) -> None:
        """See `Lease.release`."""
        super().release()
        pinned, self._pinned = self._pinned, ()
        self._tier.unpin(pinned)
        self._below.release()


class HostTier:
    """An `ObjectStore` of `capacity` bytes above `below`; `allocate` gives (pinned) memory."""

    def __init__(
        self,
        capacity: int,
        *,
        below: Mapping[str, ObjectStore] = NOTHING,
        allocate: Callable[[int], bytearray | memoryview] = bytearray,
    ) -> None:
        self.capacity = capacity
        self.below = Below(below)
        self._allocate = allocate
        self._objects: OrderedDict[bytes, _Object] = OrderedDict()
        self._used = 0
        """Bytes of all objects, those included that are forgotten and still read."""
        self.counts = TierCounts()

    def store(self, objects: Mapping[bytes, Bytes]) -> frozenset[bytes]:
        """See `ObjectStore`. Objects that are evicted or find no room go to the store below."""
        spilled: dict[bytes, Bytes] = {}
        kept = set()
        for key, data in objects.items():
            if self._put(key, data, objects, spilled):
                kept.add(key)
            else:
                spilled[key] = data
        kept |= self._spill(spilled) & objects.keys()
        self.counts.left_out += len(objects.keys() - kept)
        return frozenset(kept)

    def _put(
        self,
        key: bytes,
        data: Bytes,
        call: Mapping[bytes, object],
        spilled: dict[bytes, Bytes],
    ) -> _Object | None:
        """Copy one object; None if there is no room, and then nothing has changed."""
        known = self._objects.get(key)
        if known is not None:
            self._objects.move_to_end(key)
            return known
        source = memoryview(data).cast("B")
        room = self._make_room(source.nbytes, call, spilled)
        copy = self._copy(source) if room else None
        if copy is None:
            return None
        self._objects[key] = made = _Object(copy, source.nbytes)
        self._used += made.size
        self.counts.stored += 1
        self.counts.stored_bytes += made.size
        return made

    def _copy(self, source: memoryview) -> Bytes | None:
        try:
            copy = self._allocate(source.nbytes)
        except MemoryError:
            self.counts.errors += 1
            return None
        copy[:] = source
        return copy

    def _make_room(
        self, size: int, call: Mapping[bytes, object], spilled: dict[bytes, Bytes]
    ) -> bool:
        """Evict the least recently used, except objects in use and those of the call."""
        missing = self._used + size - self.capacity
        victims = []
        if missing > 0 and size <= self.capacity:
            for key, each in self._objects.items():
                if missing <= 0:
                    break
                if not each.pins and key not in call:
                    victims.append(key)
                    missing -= each.size
        if missing > 0:
            return False
        for key in victims:
            spilled[key] = self._forget(key).data
            self.counts.evicted += 1
        return True

    def _forget(self, key: bytes) -> _Object:
        gone = self._objects.pop(key)
        gone.resident = False
        if not gone.pins:
            self._used -= gone.size
        return gone

    def _spill(self, objects: Mapping[bytes, Bytes]) -> frozenset[bytes]:
        return self.below.store(objects)

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """See `ObjectStore`."""
        return [place is not None for place in self.where(keys)]

    def where(self, keys: Sequence[bytes]) -> list[str | None]:
        """Return the first tier of each object, None if it is in none (V1)."""
        missing = [key for key in keys if key not in self._objects]
        below = self.below.where(missing)
        return [HOST if key in self._objects else below.get(key) for key in keys]

    def holds(self, key: bytes) -> bool:
        """Return whether an object is in host memory itself."""
        return key in self._objects

    def acquire(self, keys: Sequence[bytes]) -> HostLease:
        """See `ObjectStore`. Objects found below are kept here too, if there is room."""
        spilled: dict[bytes, Bytes] = {}
        pinned = {key: self._pin(key) for key in dict.fromkeys(keys) if key in self._objects}
        missing = [key for key in dict.fromkeys(keys) if key not in pinned]
        self.counts.hits += len(pinned)
        below = self.below.acquire(missing)
        views = dict(zip(missing, below.views, strict=True))
        for key, view in views.items():
            if view is not None and self._put(key, view, dict.fromkeys(keys), spilled):
                pinned[key] = self._pin(key)
        self.counts.misses += len(missing)
        lease = self._lease(keys, pinned, views, below)
        self._spill(spilled)
        return lease

    def _lease(
        self,
        keys: Sequence[bytes],
        pinned: Mapping[bytes, _Object],
        below: Mapping[bytes, memoryview | None],
        lease: Lease,
    ) -> HostLease:
        views = [
            memoryview(pinned[key].data).cast("B").toreadonly() if key in pinned else below.get(key)
            for key in keys
        ]
        self.counts.read_bytes += sum(view.nbytes for view in views if view is not None)
        return HostLease(self, views, [*pinned.values()], lease)

    def _pin(self, key: bytes) -> _Object:
        self._objects.move_to_end(key)
        found = self._objects[key]
        found.pins += 1
        return found

    def unpin(self, objects: Iterable[_Object]) -> None:
        """End the reading of objects; those that were forgotten meanwhile leave memory."""
        for each in objects:
            each.pins -= 1
            if not each.pins and not each.resident:
                self._used -= each.size

    def drop(self, keys: Iterable[bytes]) -> int:
        """See `ObjectStore`; also below."""
        dropped = {*keys}
        here = [key for key in dropped if key in self._objects]
        for key in here:
            self._forget(key)
        below = {*self.below.where([*dropped])}
        self.below.drop([*dropped])
        return len(below.union(here))

    def clear(self) -> int:
        """Forget all objects in host memory; those below are another store's (H6)."""
        count = len(self._objects)
        for key in [*self._objects]:
            self._forget(key)
        return count

    def keys(self) -> list[bytes]:
        """Return the keys of the objects in host memory, the next victim first (T3)."""
        return [*self._objects]

    def flush(self) -> None:
        """Copy everything to the stores below too, as no later eviction will."""
        self._spill({key: each.data for key, each in self._objects.items()})

    def status(self) -> StoreStatus:
        """See `ObjectStore`."""
        pinned = sum(each.pins > 0 for each in self._objects.values())
        return StoreStatus(len(self._objects), self._used, self.capacity, pinned)
