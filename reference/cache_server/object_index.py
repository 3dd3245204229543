"""Objects of all namespaces in one range of bytes, and their eviction order (G7, G8).

An object is being written, then readable, then gone. A readable object without leases and pins is
idle. Only idle objects are evicted, least recently used first. A dropped object leaves the index at
once; its bytes are freed when the last lease or writer releases it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from kvproof.reference.cache_server.allocator import Allocator, rounded


@dataclass(eq=False, slots=True)
class Entry:
    """One object; equal to nothing but itself."""

    space: Space
    key: bytes
    offset: int
    size: int
    checksum: int | None = None
    readable: bool = False
    listed: bool = True
    """Found by its key; else it was dropped, or its writer was silent for too long."""
    leases: int = 0
    pins: tuple[str, ...] = ()
    """Names that keep it from being evicted."""


@dataclass(eq=False, slots=True)
class Space:
    """Objects of one namespace."""

    name: str
    layout: bytes = b""
    sessions: int = 0
    index: dict[bytes, Entry] = field(default_factory=dict)
    readable: int = 0
    payload: int = 0
    leased: int = 0
    pins: dict[str, dict[Entry, None]] = field(default_factory=dict)

    @property
    def unused(self) -> bool:
        """Nothing would be lost with it."""
        return not (self.sessions or self.index or self.pins or self.leased)


class ObjectIndex:
    """Every byte of the arena belongs to one object or to none."""

    def __init__(self, size: int) -> None:
        self.allocator = Allocator(size)
        self.counts: Counter[str] = Counter()
        self.reserved = 0
        """Objects being written, unlisted ones included."""
        self.doomed = 0
        """Unlisted objects whose bytes are still held."""
        self.pinned = 0
        self.pinned_bytes = 0
        self.idle: OrderedDict[Entry, None] = OrderedDict()
        self._held: dict[int, int] = {}
        """Offset -> end of the extents that cannot be evicted."""
        self._held_bytes = 0

    def reserve(self, space: Space, key: bytes, size: int) -> Entry | None:
        """Return an object to be written, or None if nothing idle makes room for it.

        Nothing is evicted in vain. Raises AssertionError if the key is listed.
        """
        assert key not in space.index
        offset = self.allocator.take(size)
        if offset is None and self._can_fit(rounded(size)):
            while offset is None:
                self._evict(next(iter(self.idle)))
                offset = self.allocator.take(size)
        if offset is None:
            return None
        entry = Entry(space, key, offset, size)
        space.index[key] = entry
        self.reserved += 1
        self._hold(entry)
        return entry

    def publish(self, entry: Entry, checksum: int | None) -> bool:
        """Make an object readable (G7); False if it was dropped while it was written."""
        if not entry.listed:
            self.discard(entry)
            return False
        entry.readable, entry.checksum = True, checksum
        self.reserved -= 1
        entry.space.readable += 1
        entry.space.payload += entry.size
        self.counts["stored"] += 1
        self._settle(entry)
        return True

    def discard(self, entry: Entry) -> None:
        """Give up an object that was being written."""
        self.unlist(entry)
        self.reserved -= 1
        self._forget(entry)

    def lease(self, entry: Entry) -> None:
        """Keep an object where it is and as it is."""
        entry.leases += 1
        entry.space.leased += entry.leases == 1
        self._hold(entry)

    def unlease(self, entry: Entry) -> None:
        """Take one lease back; the last one makes the object the most recently used."""
        entry.leases -= 1
        entry.space.leased -= not entry.leases
        self._settle(entry)

    def pin(self, entry: Entry, name: str) -> None:
        """Keep a readable object from being evicted; once for each name."""
        if name in entry.pins:
            return
        if not entry.pins:
            self.pinned += 1
            self.pinned_bytes += rounded(entry.size)
        entry.pins += (name,)
        entry.space.pins.setdefault(name, {})[entry] = None
        self._hold(entry)

    def unpin(self, space: Space, name: str) -> int:
        """Give up what a name keeps; returns how many objects that were."""
        entries = list(space.pins.get(name, ()))
        for entry in entries:
            self._unpin(entry, name)
            self._settle(entry)
        return len(entries)

    def drop(self, entry: Entry) -> bool:
        """Drop an object; returns whether it was readable."""
        self.unlist(entry)
        for name in entry.pins:
            self._unpin(entry, name)
        if entry.readable:
            self._settle(entry)
        return entry.readable

    def unlist(self, entry: Entry) -> None:
        """Take an object out of the index, so that its key may be stored again."""
        if not entry.listed:
            return
        entry.listed = False
        self.doomed += 1
        space = entry.space
        del space.index[entry.key]
        if entry.readable:
            space.readable -= 1
            space.payload -= entry.size

    def _settle(self, entry: Entry) -> None:
        """Mark an object without holders as idle if it is listed, else free it."""
        if entry.leases or entry.pins:
            return
        if not entry.listed:
            self._forget(entry)
            return
        self._unhold(entry)
        self.idle[entry] = None
        self.idle.move_to_end(entry)

    def _evict(self, entry: Entry) -> None:
        self.counts["evicted"] += 1
        self.unlist(entry)
        self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        self.doomed -= 1
        self.idle.pop(entry, None)
        self._unhold(entry)
        self.allocator.give(entry.offset)

    def _unpin(self, entry: Entry, name: str) -> None:
        pins = entry.space.pins
        del pins[name][entry]
        if not pins[name]:
            del pins[name]
        entry.pins = tuple(each for each in entry.pins if each != name)
        if not entry.pins:
            self.pinned -= 1
            self.pinned_bytes -= rounded(entry.size)

    def _hold(self, entry: Entry) -> None:
        if entry.offset not in self._held:
            self._held[entry.offset] = entry.offset + rounded(entry.size)
            self._held_bytes += rounded(entry.size)
            self.idle.pop(entry, None)

    def _unhold(self, entry: Entry) -> None:
        if self._held.pop(entry.offset, None) is not None:
            self._held_bytes -= rounded(entry.size)

    def _can_fit(self, need: int) -> bool:
        loose = self.allocator.size - self._held_bytes
        if loose < need or loose // (len(self._held) + 1) >= need:
            return loose >= need
        end = 0
        for start in sorted(self._held):
            if start - end >= need:
                return True
            end = self._held[start]
        return self.allocator.size - end >= need
