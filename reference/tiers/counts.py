"""Counters of a tier: plain integers, read by metrics (V2)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TierCounts:
    """Counts of objects, unless named bytes."""

    hits: int = 0
    misses: int = 0
    stored: int = 0
    stored_bytes: int = 0
    read_bytes: int = 0
    evicted: int = 0
    left_out: int = 0
    """Not kept, because there was no room for them."""
    errors: int = 0
    """Failed reads and writes, and objects that were not whole."""
