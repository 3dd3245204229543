"""Results of a kernel sweep, computed once from its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from kvproof.harness.records import sweep_results
from kvproof.harness.records.events import AnyEvent
from kvproof.harness.records.sweep_events import (
    CaseValue,
    Cell,
    Slower,
    SweepConcluded,
    SweepKernel,
    SweepProvider,
    SweepStarted,
)
from kvproof.harness.records.sweep_results import Neighbours, Row
from kvproof.harness.statistics import Ratio, geometric_mean
from kvproof.reports.model.report import grouped
from kvproof.reports.values.text import listed, percent, plural

OUTCOMES = ("ok", "wrong", "crash", "timeout", "out_of_resources", "unsupported")
"""Order of the columns; `missing` is last, if there are missing cells."""

BAD = ("wrong", "crash", "timeout", "out_of_resources")


class Standing(NamedTuple):
    """One provider on one kernel."""

    provider: SweepProvider
    outcomes: Counter[str]
    rows: tuple[Row, ...]
    """Its timed cells."""

    @property
    def fraction(self) -> float | None:
        """Geometric mean of the share of the ceiling, over the timed cells."""
        shares = [row.fraction for row in self.rows if row.fraction]
        return geometric_mean(shares) if shares else None

    @property
    def lowest(self) -> Row | None:
        """The timed cell furthest from the ceiling."""
        return min(
            (r for r in self.rows if r.fraction), key=lambda r: r.fraction or 0, default=None
        )


class Speedups(NamedTuple):
    """Times of another provider divided by those of the first one, cell by cell."""

    other: str
    ratios: tuple[tuple[Mapping[str, CaseValue], Ratio], ...]

    @property
    def mean(self) -> float:
        """Geometric mean."""
        return geometric_mean(ratio.middle for _, ratio in self.ratios)

    @property
    def ahead(self) -> int:
        """Cells in which the first provider is faster beyond the interval."""
        return sum(ratio.low > 1 for _, ratio in self.ratios)

    @property
    def behind(self) -> int:
        """Cells in which it is slower beyond the interval."""
        return sum(ratio.high < 1 for _, ratio in self.ratios)


@dataclass(frozen=True)
class KernelResult:
    """All providers on one kernel."""

    kernel: SweepKernel
    standings: tuple[Standing, ...]
    speedups: tuple[Speedups, ...]
    """First judged provider against every other one with the same timed cells."""
    first: str

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        timed = [s for s in self.standings if s.fraction is not None]
        if not timed:
            right = sum(s.outcomes["ok"] for s in self.standings if not s.provider.peer)
            return f"{self.kernel.name}: {plural(right, 'cell')} right"
        shares = [f"{s.provider.name} {percent(s.fraction, 0)}" for s in timed]
        return f"{self.kernel.name}: {', '.join(shares)} of the {self.kernel.ceiling} ceiling"


@dataclass(frozen=True)
class SweepResult:
    """A sweep, sorted for reading."""

    events: Sequence[AnyEvent]
    started: SweepStarted

    @cached_property
    def cells(self) -> list[Cell]:
        """Last result of each cell."""
        return list(sweep_results.latest(self.events).values())

    @cached_property
    def rows(self) -> list[Row]:
        """Timed cells."""
        return sweep_results.rows(self.events)

    @cached_property
    def bad(self) -> list[Cell]:
        """Failed cells, those of judged providers first."""
        found = [cell for cell in self.cells if cell.outcome in BAD]
        return sorted(found, key=lambda cell: (cell.peer, BAD.index(cell.outcome)))

    @cached_property
    def slower(self) -> list[Slower]:
        """Regressions against a baseline run."""
        return [event for event in self.events if isinstance(event, Slower)]

    @cached_property
    def concluded(self) -> SweepConcluded | None:
        """The sweep's verdict, or None."""
        found = [event for event in self.events if isinstance(event, SweepConcluded)]
        return found[-1] if found else None

    @cached_property
    def neighbours(self) -> list[Neighbours]:
        """The widest gaps between neighbouring cells of judged providers."""
        found = sweep_results.neighbours(self.rows, self.started.kernels)
        return [pair for pair in found if not pair.slow.cell.peer]

    @cached_property
    def kernels(self) -> list[KernelResult]:
        """One entry per kernel of the sweep."""
        return [_kernel(self, kernel) for kernel in self.started.kernels]

    @property
    def order(self) -> tuple[str, ...]:
        """Providers, as given."""
        return tuple(provider.name for provider in self.started.providers)

    @property
    def where(self) -> str:
        """Names of the devices."""
        if self.started.device == "cpu":
            return "in Triton's interpreter: right or wrong, no times"
        return listed([device.name for device in self.started.devices])


def sweep_of(events: Sequence[AnyEvent]) -> SweepResult | None:
    """Return the sweep of a run; None if the run has none."""
    begun = [event for event in events if isinstance(event, SweepStarted)]
    return SweepResult(events, begun[-1]) if begun else None


def _kernel(result: SweepResult, kernel: SweepKernel) -> KernelResult:
    cells = [cell for cell in result.cells if cell.kernel == kernel.name]
    rows = [row for row in result.rows if row.cell.kernel == kernel.name]
    counts = grouped(cells, lambda cell: cell.provider)
    timed = grouped(rows, lambda row: row.cell.provider)
    standings = tuple(
        Standing(
            provider,
            Counter(cell.outcome for cell in counts.get(provider.name, [])),
            tuple(timed.get(provider.name, [])),
        )
        for provider in result.started.providers
        if kernel.name in provider.kernels
    )
    first = next((s.provider.name for s in standings if not s.provider.peer), "")
    return KernelResult(kernel, standings, _speedups(rows, first), first)


def _speedups(rows: Sequence[Row], first: str) -> tuple[Speedups, ...]:
    cases = {sweep_results.case_key(row.cell.case): row.cell.case for row in rows}
    found: dict[str, list[tuple[Mapping[str, CaseValue], Ratio]]] = {}
    for (_, key), others in sweep_results.speedups(rows, first).items():
        for name, ratio in others.items():
            found.setdefault(name, []).append((cases[key], ratio))
    return tuple(Speedups(name, tuple(ratios)) for name, ratios in found.items())
