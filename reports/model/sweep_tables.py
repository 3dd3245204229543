"""Tables of a sweep: outcomes, cells, speed-ups, ceilings, coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from kvproof.harness.records import sweep_results
from kvproof.harness.records.sweep_events import Cell
from kvproof.harness.records.sweep_results import Row
from kvproof.harness.statistics import Ratio
from kvproof.reports.model.sweep import OUTCOMES, KernelResult, Speedups, Standing, SweepResult
from kvproof.reports.model.sweep_names import Names, Rank, axes_of, names_of
from kvproof.reports.values.svg import Table
from kvproof.reports.values.text import microseconds, percent, scaled

MOST_CELLS = 400
"""Most lines of a table of cells."""


def standings_table(result: SweepResult) -> Table:
    """Kernel and provider -> outcomes and share of the ceiling."""
    used = [name for name in OUTCOMES if any(cell.outcome == name for cell in result.cells)]
    rows = (
        (
            kernel.kernel.name,
            each.provider.name,
            each.provider.version,
            *(f"{each.outcomes[name]:,}" if each.outcomes[name] else "" for name in used),
            *_shares(each),
            kernel.kernel.ceiling if each.rows else "",
        )
        for kernel in result.kernels
        for each in kernel.standings
    )
    head = ("kernel", "provider", "version", *(name.replace("_", " ") for name in used))
    return Table((*head, "timed", "mean", "lowest", "of ceiling"), tuple(rows), words=3).filled()


def narrow_standings(result: SweepResult) -> Table:
    """The same for a terminal of 80 columns."""
    rows = (
        ("" if place else kernel.kernel.name, each.provider.name, _outcomes(each), *_shares(each))
        for kernel in result.kernels
        for place, each in enumerate(kernel.standings)
    )
    head = ("kernel", "provider", "cells", "timed", "mean", "lowest")
    return Table(head, tuple(rows), words=3).filled()


def _outcomes(standing: Standing) -> str:
    found = ((name.replace("_", " "), standing.outcomes[name]) for name in OUTCOMES)
    return ", ".join(f"{count:,} {name}" for name, count in found if count)


def _shares(standing: Standing) -> tuple[str, str, str]:
    lowest = standing.lowest
    if not standing.rows or lowest is None:
        return ("", "", "")
    return (f"{len(standing.rows):,}", percent(standing.fraction), percent(lowest.fraction))


def cells_table(rows: Sequence[Row], names: Names) -> Table:
    """Timed cells: medians with p10 to p90."""
    return Table(
        ("cell", "median", "p10 to p90", "rate", "of the ceiling", "error", "n"),
        tuple(_cell_row(row, names) for row in rows[:MOST_CELLS]),
        words=1,
    )


def _cell_row(row: Row, names: Names) -> tuple[str, ...]:
    errors = [e.relative for e in row.cell.errors.values() if e.relative is not None]
    return (
        names(row.cell.case),
        microseconds(row.seconds * 1e6),
        f"{microseconds(row.low * 1e6)} to {microseconds(row.high * 1e6)}",
        f"{scaled(row.rate)}{row.unit}",
        percent(row.fraction),
        f"{max(errors, default=0):.1e}",
        str(len(row.cell.samples)),
    )


def speedup_table(result: SweepResult, kernel: KernelResult) -> Table:
    """Cell by cell: time of the others divided by ours, with 95 % intervals."""
    others = kernel.speedups
    found = {
        (each.other, sweep_results.case_key(case)): ratio
        for each in others
        for case, ratio in each.ratios
    }
    cases = {sweep_results.case_key(case): case for each in others for case, _ in each.ratios}
    names = names_of(result, kernel.kernel.name)
    lines = tuple(
        (
            names(case),
            *(_ratio_text(found.get((each.other, key))) for each in others),
        )
        for key, case in list(cases.items())[:MOST_CELLS]
    )
    return Table(("cell", *(each.other for each in others)), (_means(others), *lines), words=1)


def _means(others: Sequence[Speedups]) -> tuple[str, ...]:
    return (
        "geometric mean; cells ahead, level, behind",
        *(
            f"{each.mean:.2f}; {each.ahead}, "
            f"{len(each.ratios) - each.ahead - each.behind}, {each.behind}"
            for each in others
        ),
    )


def _ratio_text(found: Ratio | None) -> str:
    return f"{found.middle:.2f} ({found.low:.2f} to {found.high:.2f})" if found else ""


def bad_table(result: SweepResult, cells: Sequence[Cell]) -> Table:
    """Failed cells, with the sizes of those that ran out of memory."""
    names = {name: names_of(result, name) for name in {cell.kernel for cell in cells}}
    return Table(
        ("outcome", "kernel", "provider", "cell", "why", "asked for", "limit"),
        tuple(_bad_row(cell, names[cell.kernel]) for cell in cells[:MOST_CELLS]),
        words=5,
    )


def _bad_row(cell: Cell, names: Names) -> tuple[str, ...]:
    asked = cell.resources
    figures = (asked.required, asked.limit) if asked else (None, None)
    return (
        cell.outcome.replace("_", " "),
        cell.kernel,
        cell.provider,
        names(cell.case),
        cell.reason,
        *("" if figure is None else f"{figure:,}" for figure in figures),
    )


def neighbours_table(result: SweepResult, most: int = 12) -> Table:
    """The widest gaps between neighbouring cells."""
    names = {each.name: names_of(result, each.name) for each in result.started.kernels}
    return Table(
        ("kernel", "provider", "axis", "slower cell", "faster neighbour", "shares", "ratio"),
        tuple(
            (
                pair.slow.cell.kernel,
                pair.slow.cell.provider,
                pair.axis,
                names[pair.slow.cell.kernel](pair.slow.cell.case),
                str(pair.fast.cell.case[pair.axis]),
                f"{percent(pair.slow.fraction, 0)}, {percent(pair.fast.fraction, 0)}",
                f"{pair.ratio:.2f}",
            )
            for pair in result.neighbours[:most]
        ),
        words=5,
    )


def slower_table(result: SweepResult) -> Table:
    """Regressions against the baseline."""
    return Table(
        ("kernel", "provider", "cell", "median", "baseline", "ratio"),
        tuple(
            (
                event.kernel,
                event.provider,
                sweep_results.case_name(event.case),
                microseconds(event.seconds * 1e6),
                microseconds(event.baseline * 1e6),
                f"{event.ratio:.2f} ({event.low:.2f} to {event.high:.2f})",
            )
            for event in result.slower
        ),
        words=3,
    )


def ceilings_table(result: SweepResult) -> Table:
    """The machine's limits, measured in the same run."""
    found = sweep_results.ceilings(result.events)
    names = {device.index: device.name for device in result.started.devices}
    return Table(
        ("device", "ceiling", "value", "samples"),
        tuple(
            (f"{index} {names.get(index, '')}", name, _limit(limit.value, limit.unit),
             str(len(limit.samples)))
            for index, values in found.items()
            for name, limit in values.items()
        ),
        words=2,
    )  # fmt: skip


def _limit(value: float, unit: str) -> str:
    return microseconds(value * 1e6) if unit == "s" else f"{scaled(value)}{unit}"


def coverage_table(kernel: KernelResult, cells: Sequence[Cell]) -> Table:
    """Axis -> values of the cells, with counts."""
    own = [cell for cell in cells if cell.kernel == kernel.kernel.name]
    return Table(
        ("axis", "values, cells"),
        tuple((name, ", ".join(_values(own, name))) for name in axes_of(own)),
        words=2,
    )


def _values(cells: Sequence[Cell], name: str) -> Iterator[str]:
    counts = Counter(cell.case[name] for cell in cells if name in cell.case)
    for value in sorted(counts, key=Rank(())):
        yield f"{value}: {counts[value]:,}"
