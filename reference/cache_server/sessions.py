"""Everything that each client holds, to be reclaimed when the client is dead (G8)."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvproof.reference.cache_server.object_index import Entry, Space

MOST_HELD = 1 << 16
"""Objects that one client may have under leases and reservations at a time."""


@dataclass(eq=False, slots=True)
class Batch:
    """One reservation: objects to write, and objects that were there and are held for it."""

    entries: list[Entry | None]
    """One for each requested key; None: no room."""
    writing: set[int]
    """Positions of those to write."""

    @property
    def held(self) -> int:
        """Objects that others cannot have evicted."""
        return len(self.entries) - self.entries.count(None)

    @property
    def unwritten(self) -> list[Entry]:
        """Objects that are not readable yet."""
        return [entry for at in sorted(self.writing) if (entry := self.entries[at])]


@dataclass(eq=False, slots=True)
class Session:
    """One client, from its hello to its goodbye or to the proof that it is dead."""

    id: bytes
    space: Space
    pid: int
    provable: bool
    last_call: float
    """When its last message came."""
    lapsed: bool = False
    """The client was silent for so long that its unfinished writes were dropped."""
    batches: dict[int, Batch] = field(default_factory=dict)
    leases: dict[int, list[Entry]] = field(default_factory=dict)
    held: int = 0
    """Objects under its leases and reservations, each time they are."""
    number: int = -1
    answer: bytes = b""
    """To the call of that number."""
