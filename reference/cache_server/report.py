"""Counts of a cache server and of its clients (G8)."""

from __future__ import annotations

import msgspec


class SessionReport(msgspec.Struct, frozen=True):
    """One client."""

    pid: int
    provable: bool
    """Its death is seen at once; else its memory stays until it returns or the server ends."""
    silent: float
    """Seconds since its last message."""
    lapsed: bool
    namespace: str
    reserved: int
    leases: int


class Report(msgspec.Struct, frozen=True):
    """Objects now, and events since the start; sizes in bytes."""

    capacity: int
    used: int
    """Bytes used by objects of all states, in whole granules."""
    largest_free: int
    objects: int
    """Number of objects that can be read."""
    payload: int
    """Bytes of these objects, without rounding."""
    leased: int
    """Objects under a lease."""
    reserved: int
    """Objects being written."""
    dropped: int
    """Objects that are forgotten, and under a lease or a reservation still."""
    pinned: int
    pinned_bytes: int
    stored: int
    evicted: int
    hits: int
    misses: int
    refused: dict[str, int]
    """Reason -> reservations without a place, and messages answered by a refusal."""
    sessions: list[SessionReport]
    space_objects: int
    """Objects of the asking client's namespace, like the next two."""
    space_payload: int
    space_leased: int
