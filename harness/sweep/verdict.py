"""The verdict on the cells of a sweep: complete, correct, and not slower."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kvproof.harness.analysis.compare import Row, judge
from kvproof.harness.analysis.series import Series, cell_key, clock_of, one_run
from kvproof.harness.records.sweep_events import (
    CaseValue,
    Cell,
    Slower,
    SweepConcluded,
    SweepProvider,
)
from kvproof.harness.records.sweep_results import CellKey, case_key, case_name

BAD = ("wrong", "crash", "timeout", "out_of_resources")
"""Outcomes that a provider under judgement must not have."""

ALPHA = 0.05
"""Probability that any cell of an equal sweep is called slower."""


def slower(
    now: Mapping[CellKey, Cell], before: Mapping[CellKey, Cell], *, tolerated: float
) -> list[Slower]:
    """Timed cells of both runs that are slower by the rule of `compare`, the worst first."""
    cells, rows = _against(now, before, tolerated)
    found = [_slower(*each) for each in zip(cells, rows, strict=True) if each[1].change == "slower"]
    return sorted(found, key=lambda event: -event.ratio)


def undecided(
    now: Mapping[CellKey, Cell], before: Mapping[CellKey, Cell], *, tolerated: float
) -> list[str]:
    """Cells that may be slower by more than is tolerated, or not, with the reason."""
    cells, rows = _against(now, before, tolerated)
    return [
        f"{cell.kernel} {cell.provider} {case_name(cell.case)}: {row.reason}"
        for cell, row in zip(cells, rows, strict=True)
        if row.change == "inconclusive" and row.found and row.found.high > 1 + tolerated
    ]


def _against(
    now: Mapping[CellKey, Cell], before: Mapping[CellKey, Cell], tolerated: float
) -> tuple[list[Cell], list[Row]]:
    both = [
        (before[key], cell)
        for key, cell in now.items()
        if not cell.peer and cell.samples and key in before and before[key].samples
    ]
    pairs = [(_series(old), _series(new)) for old, new in both]
    return [cell for _, cell in both], judge(pairs, [tolerated] * len(pairs), alpha=ALPHA)


def _series(cell: Cell) -> Series:
    return one_run(cell_key(cell), cell.samples, clock=clock_of(cell))


def _slower(cell: Cell, row: Row) -> Slower:
    assert row.found is not None
    return Slower(
        kernel=cell.kernel,
        provider=cell.provider,
        case=cell.case,
        seconds=row.head,
        baseline=row.base,
        ratio=row.ratio,
        low=row.found.low,
        high=row.found.high,
    )


class Planned(NamedTuple):
    """A cell that a sweep has to run."""

    kernel: str
    provider: str
    case: Mapping[str, CaseValue]
    timed: bool = True
    """Whether it is timed where the sweep has timing."""

    @property
    def key(self) -> CellKey:
        """As of the event that it ends in."""
        return self.kernel, self.provider, case_key(self.case)

    @property
    def name(self) -> str:
        """In one line."""
        return f"{self.kernel} {self.provider} {case_name(self.case)}"


def conclude(
    planned: Sequence[Planned],
    cells: Mapping[CellKey, Cell],
    providers: Sequence[SweepProvider],
    *,
    timed: bool,
) -> SweepConcluded:
    """The verdict: every planned cell has run, and those of judged providers are right.

    The baseline may lack memory where another provider is right.
    """
    ran = {each.key: cells[each.key] for each in planned if each.key in cells}
    judged = [cell for cell in ran.values() if not cell.peer]
    right = {(cell.kernel, case_key(cell.case)) for cell in judged if cell.outcome == "ok"}
    bad = [cell for cell in judged if cell.outcome in BAD and not _has_no_room(cell, right)]
    never = [each for each in planned if each.key not in cells]
    untimed = [each for each in planned if timed and each.timed and _lacks_times(cells, each)]
    why = [
        *_bad(bad, judged),
        *_missing(never, planned, "did not run"),
        *_missing(untimed, planned, "were not timed"),
        *_vacuous(judged, providers),
    ]
    return SweepConcluded(
        verdict="fail" if bad else "inconclusive" if why or not planned else "pass",
        reason="; ".join(why) or ("" if planned else "no cell was planned"),
        planned=len(planned),
        outcomes=_outcomes(ran.values(), providers),
        missing=[each.name for each in (*never, *untimed)],
    )


def _has_no_room(cell: Cell, right: Collection[tuple[str, str]]) -> bool:
    """Whether the baseline alone lacks memory, in a cell where another provider is right."""
    return cell.is_crowded_baseline and (cell.kernel, case_key(cell.case)) in right


def _lacks_times(cells: Mapping[CellKey, Cell], planned: Planned) -> bool:
    cell = cells.get(planned.key)
    return cell is not None and cell.outcome == "ok" and not cell.samples


def _bad(bad: Sequence[Cell], judged: Sequence[Cell]) -> Iterator[str]:
    if bad:
        first = bad[0]
        words = first.outcome.replace("_", " ")
        place = f"{first.kernel} {first.provider} {case_name(first.case)}"
        count = f"{len(bad):,} of {len(judged):,} cells are not right"
        yield f"{count}, such as {place}: {words}: {first.reason}"


def _missing(missing: Sequence[Planned], planned: Sequence[Planned], what: str) -> Iterator[str]:
    """How many cells are missing, kernel by kernel."""
    if missing:
        counts = Counter(each.kernel for each in missing)
        kernels = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        count = f"{len(missing):,} of {len(planned):,} cells {what}"
        yield f"{count} ({kernels}), such as {missing[0].name}"


def _vacuous(judged: Sequence[Cell], providers: Sequence[SweepProvider]) -> Iterator[str]:
    """A kernel of which a provider could run no cell at all has not been judged."""
    for provider in providers:
        for kernel in () if provider.peer else provider.kernels:
            own = [c for c in judged if (c.provider, c.kernel) == (provider.name, kernel)]
            if own and all(cell.outcome == "unsupported" for cell in own):
                yield f"{provider.name} supports no cell of {kernel}: {own[0].reason}"


def _outcomes(
    cells: Iterable[Cell], providers: Sequence[SweepProvider]
) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {provider.name: Counter() for provider in providers}
    for cell in cells:
        counts.setdefault(cell.provider, Counter())[cell.outcome] += 1
    return {name: dict(found) for name, found in counts.items()}
