"""Workers of a campaign: units by suite and machine, losses, failures, pace over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from statistics import median

from kvproof.harness.records.campaign_events import UnitDone, UnitLost
from kvproof.harness.records.events import AnyEvent, Failure
from kvproof.reports.charts.axes import Series, plot, series_table
from kvproof.reports.model.report import grouped
from kvproof.reports.values.svg import Chart, Table
from kvproof.reports.values.text import duration, listed, plural, tick

_BINS = 24
"""Time bins of the pace chart."""

_MOST_LINES = 4
"""Most machines with a line of their own; for more machines only the sum is drawn."""

_MOST_ROWS = 50
"""Most machines and losses in a table."""

_YEARS = (946_684_800.0, 4_102_444_800.0)
"""Unix time of 2000 and of 2100; a clock outside this range is wrong."""


@dataclass(frozen=True)
class Campaign:
    """The units of a run, sorted for reading."""

    units: tuple[UnitDone, ...]
    lost: tuple[UnitLost, ...]
    failures: tuple[Failure, ...]
    """Failures that units have shrunk, one per fingerprint."""

    @cached_property
    def done(self) -> list[UnitDone]:
        """Units with a result."""
        return [unit for unit in self.units if not unit.gave_up]

    @cached_property
    def gave_up(self) -> list[UnitDone]:
        """Units that lost every worker."""
        return [unit for unit in self.units if unit.gave_up]

    @cached_property
    def machines(self) -> dict[str, list[UnitDone]]:
        """Machine -> its units, most units first."""
        found = grouped(self.done, lambda unit: unit.where.rpartition(" ")[0])
        return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        cases = sum(unit.test_cases for unit in self.done)
        workers = len({unit.where for unit in self.done})
        again = sum(unit.attempt > 1 for unit in self.done)
        parts = [
            f"{plural(len(self.done), 'unit')} with {cases:,} histories done by "
            f"{plural(workers, 'worker')} on {plural(len(self.machines), 'machine')}",
            f"{again:,} of them after {plural(len(self.lost), 'lost worker')}" if self.lost else "",
            f"{plural(len(self.gave_up), 'unit')} given up" if self.gave_up else "",
            f"{plural(self.away, 'operation')} on the example database left out, as it did not "
            "answer" if self.away else "",
        ]  # fmt: skip
        return "; ".join(part for part in parts if part)

    @property
    def away(self) -> int:
        """Failed operations on the example database."""
        return sum(unit.database.get("unreachable", 0) for unit in self.done)


def campaign_of(events: Sequence[AnyEvent]) -> Campaign | None:
    """Return the campaign of a run; None if the run has no units."""
    units = tuple(event for event in events if isinstance(event, UnitDone))
    lost = tuple(event for event in events if isinstance(event, UnitLost))
    shrunk = {(unit.target, name) for unit in units for name in unit.shrunk}
    failures = {
        (event.target, event.property, event.fingerprint): event
        for event in events
        if isinstance(event, Failure) and (event.target, event.property) in shrunk
    }
    return Campaign(units, lost, tuple(failures.values())) if units or lost else None


def tables(campaign: Campaign) -> list[Table]:
    """All tables that have a row."""
    every = (suites_table, failures_table, machines_table, losses_table)
    return [data for make in every if (data := make(campaign)).rows]


def suites_table(campaign: Campaign) -> Table:
    """Target and suite -> units, histories, their time, units that met a failure."""
    rows = [
        (target, suite, f"{len(units):,}", f"{sum(u.test_cases for u in units):,}",
         duration(median(u.cpu_seconds for u in units)),
         duration(sum(u.cpu_seconds for u in units)), f"{sum(bool(u.failed) for u in units):,}")
        for (target, suite), units in grouped(
            campaign.done, lambda unit: (unit.target, unit.suite)).items()
    ]  # fmt: skip
    head = ("target", "suite", "units", "histories", "CPU time of one", "of all", "met a failure")
    return Table(head, tuple(rows), words=2)


def machines_table(campaign: Campaign) -> Table:
    """Machine -> processes, units, share of CPU time in the time of its units."""
    rows = [
        (machine, f"{len({u.where for u in units}):,}", f"{len(units):,}",
         f"{sum(u.test_cases for u in units):,}", duration(sum(u.cpu_seconds for u in units)),
         _share(sum(u.cpu_seconds for u in units), sum(u.seconds for u in units)))
        for machine, units in list(campaign.machines.items())[:_MOST_ROWS]
    ]  # fmt: skip
    head = ("machine", "processes", "units", "histories", "CPU time", "of the time taken")
    return Table(head, tuple(rows), words=1)


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole > 0 else ""


def losses_table(campaign: Campaign) -> Table:
    """Each lost worker, and the fate of its unit."""
    ends = {unit.unit: unit for unit in campaign.units}
    rows = [
        (lost.unit, lost.reason, _end(ends.get(lost.unit)), str(lost.attempt))
        for lost in campaign.lost[:_MOST_ROWS]
    ]
    return Table(("unit", "why its worker was lost", "in the end", "attempt"), tuple(rows), words=3)


def _end(unit: UnitDone | None) -> str:
    if unit is None:
        return "not done"
    return "given up" if unit.gave_up else f"done by {unit.where}"


def failures_table(campaign: Campaign) -> Table:
    """Fingerprint -> property, units that met it, units that shrunk it (one)."""
    rows = []
    for failure in campaign.failures:
        own = [u for u in campaign.done if u.target == failure.target]
        shrunk = [unit.where for unit in own if failure.property in unit.shrunk]
        met = sum(failure.property in unit.failed for unit in own)
        row = (failure.fingerprint, failure.property, failure.target, listed(shrunk), f"{met:,}")
        rows.append(row)
    head = ("fingerprint", "property", "target", "shrunk by", "units that met it")
    return Table(head, tuple(rows), words=4)


def pace_chart(campaign: Campaign) -> Chart | None:
    """Histories per minute over the time of day; None if no time has passed."""
    timed = [u for u in campaign.done if _YEARS[0] < u.began < _YEARS[1] and 0 < u.seconds < 1e7]
    if not timed:
        return None
    start = min(unit.began for unit in timed)
    span = max(unit.began + unit.seconds for unit in timed) - start
    few = 1 < len(campaign.machines) <= _MOST_LINES
    lines = {"all": timed} | (
        grouped(timed, lambda unit: unit.where.rpartition(" ")[0]) if few else {}
    )
    series = [
        Series(name, tuple(_pace(units, start, span)), f"s{place % 8}", place)
        for place, (name, units) in enumerate(lines.items())
    ]
    paces = [y for line in series for _, y in line.points]
    middle, most = median(y for _, y in series[0].points), max(paces) * 1.1 or 1.0
    title = f"{tick(middle)} histories per minute in the median"
    since = f"{datetime.fromtimestamp(start, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    return Chart(
        title=title,
        subtitle=f"{plural(len(timed), 'unit')} since {since}; spans of {duration(span / _BINS)}",
        drawing=plot(series, title, "minutes", (0.0, most), tick),
        table=series_table("minutes", series, _one_decimal),
    )


def _one_decimal(value: float) -> str:
    return f"{value:,.1f}"


def _pace(units: Sequence[UnitDone], start: float, span: float) -> list[tuple[float, float]]:
    """(minutes since the start, histories per minute); a unit is spread over its time."""
    width = span / _BINS
    counts = [0.0] * _BINS
    for unit in units:
        first, last = unit.began - start, unit.began - start + unit.seconds
        for number in range(int(first / width), min(_BINS - 1, int(last / width)) + 1):
            inside = min(last, (number + 1) * width) - max(first, number * width)
            counts[number] += unit.test_cases * max(0.0, inside) / unit.seconds
    return [(number * width / 60, 60 * count / width) for number, count in enumerate(counts)]
