"""Counts of the objects and calls of a distributed store."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kvproof.reference.stores.object_store import Lease


class RemoteCounts(NamedTuple):
    """Counts since the store was made; of objects, except those of calls."""

    hits: int
    misses: int
    """Requested but not received, for any reason."""
    dropped: int
    """Torn, altered, foreign or of another version: found by a read, and removed."""
    stored: int
    """Sent and kept."""
    refused: int
    """Not kept by the server, for example for want of room, or too large to be sent."""
    failed: int
    """Calls that the server did not answer, or not in time."""
    skipped: int
    """Calls that were not made, because it had not answered before."""


class Tally:
    """Counts, for several threads."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, **counts: int) -> None:
        """Add to counts by their names in RemoteCounts."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def snapshot(self) -> RemoteCounts:
        """All counts at one moment."""
        with self._lock:
            return RemoteCounts(*(self._counts[name] for name in RemoteCounts._fields))


class Copies(Lease):
    """Objects as they were read: private, so that only their number matters to a store."""

    def __init__(
        self, found: Mapping[bytes, memoryview], keys: Sequence[bytes], held: Held
    ) -> None:
        super().__init__([found.get(key) for key in keys])
        self._held = held
        self._keys = tuple(found)
        held.take(self._keys)

    def release(self) -> None:
        """Let the copies go, and count them no longer."""
        self._held.let_go(self._keys)
        self._keys = ()
        super().release()


class Held:
    """How many leases an object is under, for several threads."""

    def __init__(self) -> None:
        self._leases: Counter[bytes] = Counter()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._leases)

    def take(self, keys: Iterable[bytes]) -> None:
        """Count one more lease of each."""
        with self._lock:
            self._leases.update(keys)

    def let_go(self, keys: Iterable[bytes]) -> None:
        """Count one lease less of each."""
        with self._lock:
            for key in keys:
                self._leases[key] -= 1
                if not self._leases[key]:
                    del self._leases[key]
