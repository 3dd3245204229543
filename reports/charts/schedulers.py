"""Schedulers around a model of fixed step time, as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvproof.harness.records.bench_events import SchedulerPoint
from kvproof.reports.values.svg import Table
from kvproof.reports.values.text import duration, microseconds, percent, scaled, significant

TITLE = "Schedulers around a model of fixed step time, by CPU time of the control plane"
HEADS = (
    "requests, prompt", "target", "share of step time", "a step, p50", "p99", "p99.99", "longest",
    "last tenth over first", "a waiting request", "steps", "simulated", "longest call",
    "p99.99 without the collector", "longest pause of the collector", "its share", "cut short",
    "p50 of all turns", "turns",
)  # fmt: skip
NARROW = (0, 1, 2, 3, 4, 6, 8)
"""Columns that a terminal has room for."""


def table(found: Sequence[SchedulerPoint]) -> Table:
    """One line for each target and cell."""
    return Table(HEADS, tuple(map(row, found)), words=2).filled()


def row(found: SchedulerPoint) -> tuple[str, ...]:
    """Format the figures; p99.99 needs ten thousand steps."""
    return (
        f"{found.requests:,} of {found.prompt_tokens:,}",
        found.target,
        f"{percent(found.share)} of {1000 * found.step_seconds:g} ms",
        microseconds(found.p50_us),
        microseconds(found.p99_us),
        _or_not(found.p9999_us, microseconds),
        microseconds(found.longest_us),
        significant(found.drift),
        f"{scaled(found.bytes_per_waiting)}B",
        f"{found.steps:,}",
        duration(found.simulated_seconds),
        _or_not(found.longest_call_us, microseconds),
        _or_not(found.p9999_without_us, microseconds),
        _or_not(found.collector_us, microseconds),
        _or_not(found.collector_share, percent),
        found.cut,
        _spread(found),
        str(found.repetitions),
    )


def _spread(found: SchedulerPoint) -> str:
    if found.p50_low_us is None or found.p50_high_us is None:
        return ""
    return f"{microseconds(found.p50_low_us)} to {microseconds(found.p50_high_us)}"


def _or_not(value: float | None, shown: Callable[[float], str]) -> str:
    return "" if value is None else shown(value)
