"""Stores that several engines share, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.harness.records.bench_events import TIER_COPIES, TierSummary
from kvproof.reports.values.svg import Table
from kvproof.reports.values.text import scaled, significant

TITLE = "Shared stores of objects, by CPU time of all engines and the server"
HEADS = (
    "target", "operation", "objects", "engines", "rate", "p10 to p90", "by the clock", "copies",
    "of memcpy, 95 % interval", "of memcpy, shared memory", "against the peer, 95 % interval", "n",
)  # fmt: skip
NARROW = (0, 1, 2, 3, 4, 8, 10)
"""Columns that a terminal has room for."""


def table(found: Sequence[TierSummary]) -> Table:
    """One line for each target, operation, size and number of engines."""
    return Table(HEADS, tuple(map(row, found)), words=2).filled()


def measured(found: Sequence[TierSummary]) -> list[TierSummary]:
    """Without the plain copies, which are the yardstick of the others."""
    return [each for each in found if each.operation not in TIER_COPIES]


def row(found: TierSummary) -> tuple[str, ...]:
    """Format the figures; a lookup moves no bytes, so it has objects per second."""
    lookup = found.operation == "lookup"
    unit, each = (" objects/s", 1) if lookup else ("B/s", found.object_bytes)
    shown, low, high, wall = (
        f"{scaled(rate * each)}{unit}"
        for rate in (found.objects_per_second, found.low, found.high, found.wall_objects_per_second)
    )
    return (
        found.target, found.operation, _size(found.object_bytes), str(found.clients), shown,
        f"{low} to {high}", wall, "" if found.copies is None else str(found.copies),
        _ratio(found.of_memcpy, found.of_memcpy_low, found.of_memcpy_high),
        _ratio(found.of_shared_memcpy, found.of_shared_memcpy_low, found.of_shared_memcpy_high),
        _ratio(found.ratio, found.ratio_low, found.ratio_high, f" times {found.peer}"),
        str(found.repetitions),
    )  # fmt: skip


def _ratio(value: float | None, low: float | None, high: float | None, unit: str = "") -> str:
    if value is None or low is None or high is None:
        return ""
    return f"{significant(value)}{unit} ({significant(low)} to {significant(high)})"


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"
