"""Cache server: the handler of each message of a session (G7, G8, H6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice, zip_longest
from typing import Any

from kvproof.reference.cache_server import messages as m
from kvproof.reference.cache_server.allocator import rounded
from kvproof.reference.cache_server.object_index import Entry, ObjectIndex, Space
from kvproof.reference.cache_server.sessions import MOST_HELD, Batch, Session

MOST_PIN_NAMES = 1024
"""In one namespace."""


class Decline(Exception):
    """A message is answered by a refusal, and nothing is done."""

    def __init__(self, reason: m.Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Verbs:
    """One method for each verb; each costs as much as its message is long."""

    def __init__(self, objects: ObjectIndex, *, most_pinned: float, refused: Counter[str]) -> None:
        """`most_pinned`: bytes that all pins may keep; `refused` counts reservations by reason."""
        self._objects, self._most_pinned, self._refused = objects, most_pinned, refused
        self._next = 0
        """Next number of a batch or lease."""
        self.hits = self.misses = 0
        self._verbs: dict[type, Callable[[Session, Any], m.Reply]] = {
            m.Reserve: self._reserve,
            m.Commit: self._commit,
            m.Abort: self._abort,
            m.Lookup: self._lookup,
            m.Acquire: self._acquire,
            m.Release: self._release,
            m.Pin: self._pin,
            m.Unpin: lambda s, r: m.Count(self._objects.unpin(s.space, r.name)),
            m.Drop: lambda s, r: self._drop(s.space, r.keys),
            m.Clear: lambda s, _: self._clear(s.space),
            m.Heartbeat: lambda s, _: m.Count(s.held),
        }

    def do(self, session: Session, request: m.Request) -> m.Reply:
        """Carry out a message. Raises Decline, and then has done nothing."""
        return self._verbs[type(request)](session, request)

    def take_back(self, session: Session) -> None:
        """End all leases and reservations of a session (G8)."""
        for batch in list(session.batches):
            self._close(session, batch, {})
        for lease in list(session.leases):
            self._end_lease(session, lease)

    def _reserve(self, session: Session, request: m.Reserve) -> m.Reserved:
        keys, sizes, index = request.keys, request.sizes, session.space.index
        if len(keys) != len(sizes) or len(set(keys)) != len(keys):
            raise Decline("malformed", f"{len(keys)} keys, {len(sizes)} sizes; no key twice")
        self._room_for(session, len(keys))
        there = [index.get(key) for key in keys]
        present = [entry if entry and entry.readable else None for entry in there]
        for held in filter(None, present):  # before anything is evicted
            self._objects.lease(held)
        batch = Batch(present, set())
        places = []
        for at, entry in enumerate(there):
            if entry is not None:
                places.append(m.Place("present" if entry.readable else "busy"))
                continue
            new = batch.entries[at] = self._objects.reserve(session.space, keys[at], sizes[at])
            places.append(m.Place("granted", new.offset) if new else m.Place("full"))
            if new:
                batch.writing.add(at)
        for place in places:
            self._refused[place.outcome] += place.outcome in ("busy", "full")
        session.batches[self._number()] = batch
        session.held += batch.held
        return m.Reserved(self._next, places)

    def _commit(self, session: Session, request: m.Commit) -> m.Flags:
        batch, written, sums = (
            session.batches.get(request.batch),
            request.written,
            request.checksums,
        )
        if batch is None:
            raise Decline("unknown", f"there is no reservation {request.batch}")
        if not batch.writing.issuperset(written) or (sums and len(sums) != len(written)):
            raise Decline("malformed", f"positions {written[:8]} with {len(sums)} checksums")
        return m.Flags(self._close(session, request.batch, dict(zip_longest(written, sums))))

    def _abort(self, session: Session, request: m.Abort) -> m.Flags:
        return self._commit(session, m.Commit(request.batch, [], []))

    def _close(self, session: Session, batch: int, written: dict[int, int | None]) -> list[bool]:
        closed = session.batches.pop(batch)
        session.held -= closed.held
        there = []
        for at, entry in enumerate(closed.entries):
            if entry is None:
                there.append(False)
            elif at not in closed.writing:
                there.append(entry.listed)
                self._objects.unlease(entry)
            elif at in written:
                there.append(self._objects.publish(entry, written[at]))
            else:
                there.append(False)
                self._objects.discard(entry)
        return there

    def _lookup(self, session: Session, request: m.Lookup) -> m.Flags:
        return m.Flags([entry is not None for entry in self._find(session.space, request.keys)])

    def _acquire(self, session: Session, request: m.Acquire) -> m.Leased:
        found = self._find(session.space, request.keys)
        entries = list(dict.fromkeys(filter(None, found)))
        self._room_for(session, len(entries))
        for entry in entries:
            self._objects.lease(entry)
        self.hits += len(found) - found.count(None)
        self.misses += found.count(None)
        session.leases[self._number()] = entries
        session.held += len(entries)
        return m.Leased(
            self._next,
            [m.Extent(e.offset, e.size, e.checksum) if e else None for e in found],
        )

    def _release(self, session: Session, request: m.Release) -> m.Count:
        known = [lease for lease in dict.fromkeys(request.leases) if lease in session.leases]
        for lease in known:
            self._end_lease(session, lease)
        return m.Count(len(known))

    def _end_lease(self, session: Session, lease: int) -> None:
        entries = session.leases.pop(lease)
        session.held -= len(entries)
        for entry in entries:
            self._objects.unlease(entry)

    def _pin(self, session: Session, request: m.Pin) -> m.Flags:
        """Pins of a share of the arena at most: others must find room."""
        space, most = session.space, self._most_pinned
        if len(space.pins) >= MOST_PIN_NAMES and request.name not in space.pins:
            raise Decline("limit", f"there are {MOST_PIN_NAMES} names of pins already")
        pinned = []
        for entry in self._find(space, request.keys):
            size = rounded(entry.size) if entry else 0
            fits = entry and (entry.pins or self._objects.pinned_bytes + size <= most)
            if entry and fits:
                self._objects.pin(entry, request.name)
            pinned.append(bool(fits))
        return m.Flags(pinned)

    def _drop(self, space: Space, keys: list[bytes]) -> m.Count:
        listed = [space.index.get(key) for key in dict.fromkeys(keys)]
        return m.Count(sum([self._objects.drop(entry) for entry in listed if entry]))

    def _clear(self, space: Space) -> m.Cleared:
        """Forget the oldest objects: others have their turn between two calls (H6)."""
        gone = self._drop(space, list(islice(space.index, m.MOST_KEYS)))
        return m.Cleared(gone.count, len(space.index))

    def _find(self, space: Space, keys: list[bytes]) -> list[Entry | None]:
        """Readable objects, without any effect (G7)."""
        found = [space.index.get(key) for key in keys]
        return [entry if entry and entry.readable else None for entry in found]

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _room_for(self, session: Session, count: int) -> None:
        if session.held + count > MOST_HELD:
            raise Decline("limit", f"{session.held} objects are held, {MOST_HELD} may be")
