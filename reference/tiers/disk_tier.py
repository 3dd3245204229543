"""Objects in files: bounded, checked on every read, whole or not there (G7, H6).

An object is one file, called by its key, made of `object_format.header` and its bytes. It is
written under another name, synchronised and renamed, so a process killed between any two
operations leaves it whole or not at all; any other file under the name of a key - torn,
shortened, changed, of another object or version - is dropped and never served. No failure of the
disk is a failure of a request: it is counted and logged, and the object is not there.
"""

from __future__ import annotations

import errno
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from kvproof.reference.stores.object_format import HEADER_BYTES, declared_size, header, payload_of
from kvproof.reference.stores.object_store import KEY_BYTES, Bytes, Lease, StoreStatus
from kvproof.reference.tiers.counts import TierCounts
from kvproof.reference.tiers.files import Files

LOG = logging.getLogger("kvproof.reference.tiers.tiers")
TEMPORARY = ".tmp"
"""Ends the name of a file that is being written."""
SHORT_OF = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""Errors of a read that are no fault of the file."""


class _File:
    __slots__ = ("pins", "resident", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        """Bytes, header included."""
        self.pins = 0
        self.resident = True


class DiskLease(Lease):
    """Keeps the bytes of its views."""

    def __init__(
        self, tier: DiskTier, views: Sequence[memoryview | None], pinned: Sequence[_File]
    ) -> None:
        super().__init__(views)
        self._tier, self._pinned = tier, pinned

    def release(self) -> None:
        """See `Lease.release`."""
        super().release()
        pinned, self._pinned = self._pinned, ()
        self._tier.unpin(pinned)


class DiskTier:
    """An `ObjectStore` whose files have at most `capacity` bytes, headers included."""

    def __init__(self, files: Files, capacity: int) -> None:
        """Take over files of earlier processes, the least recently stored first."""
        self.files = files
        self.capacity = capacity
        self._known: OrderedDict[bytes, _File] = OrderedDict()
        self.used = 0
        """Bytes of all files that may be there, those included that could not be removed."""
        self._left: dict[str, int] = {}
        """Files that could not be removed, and their bytes."""
        self.counts = TierCounts()
        self._scan()

    # --- files of earlier processes ---

    def _scan(self) -> None:
        for name, size in self.files.names():
            key = _key(name.removesuffix(TEMPORARY))
            if key is None:
                continue  # not ours
            if name.endswith(TEMPORARY) or not self._promises(key, name, size):
                self._remove(name, size)
                continue
            self._known[key] = _File(size)
            self.used += size
        self._make_room(0, ())

    def _promises(self, key: bytes, name: str, size: int) -> bool:
        try:
            payload = declared_size(key, self.files.head(name, HEADER_BYTES))
        except OSError as error:
            self._failed("read", name, error)
            return False
        if payload is None or HEADER_BYTES + payload != size:
            self._failed("use", name, "it is not whole")
            return False
        return True

    # --- storing ---

    def store(self, objects: Mapping[bytes, Bytes]) -> frozenset[bytes]:
        """See `ObjectStore`."""
        return frozenset(key for key, data in objects.items() if self._put(key, data, objects))

    def _put(self, key: bytes, data: Bytes, call: Mapping[bytes, object]) -> bool:
        if key in self._known:
            self._known.move_to_end(key)
            return True
        size = HEADER_BYTES + memoryview(data).nbytes
        if not self._make_room(size, call):
            self.counts.left_out += 1
            return False
        if not self._write(key, data, size):
            return False
        self._known[key] = _File(size)
        self.used += size
        self.counts.stored += 1
        self.counts.stored_bytes += size - HEADER_BYTES
        return True

    def _write(self, key: bytes, data: Bytes, size: int) -> bool:
        name = key.hex()
        try:
            self.files.write(name + TEMPORARY, (header(key, data), data))
            self.files.rename(name + TEMPORARY, name)
        except OSError as error:
            self._failed("write", name, error)
            self._remove(name + TEMPORARY, size, sure=False)
            return False
        for written in (name, name + TEMPORARY):
            self.used -= self._left.pop(written, 0)
        return True

    def _make_room(self, size: int, call: Iterable[bytes]) -> bool:
        """Evict the least recently used, except objects in use and those of the call."""
        missing = self.used + size - self.capacity
        victims = []
        for key, file in self._known.items():
            if missing <= 0 or size > self.capacity:
                break
            if not file.pins and key not in call:
                victims.append(key)
                missing -= file.size
        if missing > 0:
            return False
        for key in victims:
            self._forget(key)
            self.counts.evicted += 1
        return self.used + size <= self.capacity

    def _forget(self, key: bytes) -> None:
        """Remove a file at once: its name may be reused, and no restart may find it."""
        file = self._known.pop(key)
        file.resident = False
        if not file.pins:
            self.used -= file.size
        self._remove(key.hex(), file.size)

    def _remove(self, name: str, size: int, *, sure: bool = True) -> None:
        """Remove a file that exists, or that a failed write may have left."""
        before, left = self._left.pop(name, 0), 0
        try:
            self.files.remove(name)
        except FileNotFoundError as error:
            if sure:
                self._failed("remove", name, error)
        except OSError as error:
            left = self._left[name] = size
            self._failed("remove", name, error)
        self.used += left - before

    # --- reading ---

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """See `ObjectStore`."""
        return [key in self._known for key in keys]

    def acquire(self, keys: Sequence[bytes]) -> DiskLease:
        """See `ObjectStore`. Incomplete objects are dropped."""
        views = {key: self._view(key) for key in dict.fromkeys(keys) if key in self._known}
        self.counts.misses += len({*keys}) - len(views)
        read = [key for key, view in views.items() if view is not None]
        for key in read:
            self._known[key].pins += 1
            self._known.move_to_end(key)
        pinned = [self._known[key] for key in read]
        return DiskLease(self, [views.get(key) for key in keys], pinned)

    def _view(self, key: bytes) -> memoryview | None:
        payload, innocent, why = None, False, "it is not whole"
        try:
            payload = payload_of(key, self.files.view(key.hex()))
        except (OSError, MemoryError) as error:
            innocent, why = isinstance(error, MemoryError) or error.errno in SHORT_OF, str(error)
        if payload is None:
            self._failed("read", key.hex(), why)
            if not innocent:
                self._forget(key)
            return None
        self.counts.hits += 1
        self.counts.read_bytes += payload.nbytes
        return payload.toreadonly()

    def unpin(self, files: Iterable[_File]) -> None:
        """End the reading of files; those that were forgotten meanwhile leave the disk."""
        for file in files:
            file.pins -= 1
            if not file.pins and not file.resident:
                self.used -= file.size

    # --- leaving ---

    def drop(self, keys: Iterable[bytes]) -> int:
        """See `ObjectStore`."""
        known = [key for key in {*keys} if key in self._known]
        for key in known:
            self._forget(key)
        return len(known)

    def clear(self) -> int:
        """See `ObjectStore`."""
        return self.drop([*self._known])

    def keys(self) -> list[bytes]:
        """Return the keys of all files, the next victim first (T3)."""
        return [*self._known]

    def status(self) -> StoreStatus:
        """See `ObjectStore`."""
        pinned = sum(file.pins > 0 for file in self._known.values())
        payload = sum(file.size - HEADER_BYTES for file in self._known.values())
        return StoreStatus(len(self._known), payload, self.capacity, pinned)

    def _failed(self, verb: str, name: str, why: object) -> None:
        self.counts.errors += 1
        LOG.info("disk tier: cannot %s %s: %s", verb, name, why)


def _key(name: str) -> bytes | None:
    """Return the key in a file name, or None."""
    try:
        key = bytes.fromhex(name)
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES and key.hex() == name else None
