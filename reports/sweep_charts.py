"""Charts and tables of a sweep: heat maps, roofline, outcomes, speed-ups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from kvproof.harness import sweep_results
from kvproof.harness.bench_cases import Ratio
from kvproof.harness.sweep_events import CaseValue, Cell
from kvproof.harness.sweep_results import Row
from kvproof.reports.charts import place_of, style_of
from kvproof.reports.heatmap import Tile, heatmap
from kvproof.reports.roofline import Point, roofline
from kvproof.reports.svg import Chart, Table
from kvproof.reports.sweep import OUTCOMES, KernelResult, Speedups, Standing, SweepResult
from kvproof.reports.text import microseconds, percent, plural, scaled, significant

MOST_ROWS = 48
"""Rows of a heat map; the table of numbers has all cells."""

_NEARLY_ALL = 0.75
"""A value that this share of the cells has goes without saying."""

MOST_CELLS = 400
"""Lines of a table of cells."""

_MARKS = {
    "wrong": "wrong",
    "crash": "crash",
    "timeout": "timeout",
    "out_of_resources": "no room",
    "unsupported": "–",  # noqa: RUF001 - a dash is what a table cell shows
}


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
    return Table((*head, "timed", "mean", "lowest", "of ceiling"), tuple(rows), words=3)


def narrow_standings(result: SweepResult) -> Table:
    """The same for a terminal of 80 columns."""
    rows = (
        ("" if place else kernel.kernel.name, each.provider.name, _outcomes(each), *_shares(each))
        for kernel in result.kernels
        for place, each in enumerate(kernel.standings)
    )
    return Table(("kernel", "provider", "cells", "timed", "mean", "lowest"), tuple(rows), words=3)


def _outcomes(standing: Standing) -> str:
    found = ((name.replace("_", " "), standing.outcomes[name]) for name in OUTCOMES)
    return ", ".join(f"{count:,} {name}" for name, count in found if count)


def _shares(standing: Standing) -> tuple[str, str, str]:
    """How many cells were timed, their mean share of the ceiling, and the lowest."""
    lowest = standing.lowest
    if not standing.rows or lowest is None:
        return ("", "", "")
    return (f"{len(standing.rows):,}", percent(standing.fraction), percent(lowest.fraction))


def heat_maps(result: SweepResult, kernel: KernelResult) -> list[Chart]:
    """One map per provider with timed cells, all with the same rows and columns."""
    timed = [s for s in kernel.standings if s.rows]
    cases = {sweep_results.case_key(row.cell.case) for s in timed for row in s.rows}
    cells = [
        cell
        for cell in result.cells
        if cell.kernel == kernel.kernel.name and sweep_results.case_key(cell.case) in cases
    ]
    if not timed:
        return []
    axis = _column_axis([row.cell for s in timed for row in s.rows], kernel)
    grid = _Grid(cells, axis, kernel)
    names = names_of(result, kernel.kernel.name)
    maps = [_heat_map(grid, standing, kernel, names) for standing in timed]
    return [chart for chart in maps if chart.drawing.shapes and grid.rows]


def _column_axis(cells: Sequence[Cell], kernel: KernelResult) -> str:
    """The axis with the most values; the kernel's own order decides between equals."""
    counts = {
        axis: len({cell.case.get(axis) for cell in cells} & set(values))
        for axis, values in kernel.kernel.axes.items()
    }
    return max(counts, key=lambda axis: counts[axis], default="")


class _Grid:
    """Rows and columns of the heat maps of a kernel: one axis across, all others down."""

    def __init__(self, cells: Sequence[Cell], axis: str, kernel: KernelResult) -> None:
        self.axis = axis
        self._axes = kernel.kernel.axes
        self._down = [name for name in _names(cells) if name != axis]
        self.columns = sorted({c.case[axis] for c in cells if axis in c.case}, key=self._rank(axis))
        self.cells = list(cells)
        lines: dict[tuple[CaseValue, ...], set[CaseValue]] = {}
        for cell in cells:
            if axis in cell.case:
                lines.setdefault(self.line(cell), set()).add(cell.case[axis])
        wide = [line for line, values in lines.items() if len(values) > 1]
        self.rows = sorted(wide, key=self._line_rank)[:MOST_ROWS]
        self._short = Names([cell.case for cell in cells if self.line(cell) in self.rows])

    def line(self, cell: Cell) -> tuple[CaseValue, ...]:
        return tuple(value for name, value in cell.case.items() if name != self.axis)

    def title(self, line: tuple[CaseValue, ...]) -> str:
        """What sets the row apart from the others."""
        return self._short(dict(zip(self._down, line, strict=True)))

    def _rank(self, axis: str) -> _Rank:
        return _Rank(self._axes.get(axis, ()))

    def _line_rank(self, line: tuple[CaseValue, ...]) -> tuple[tuple[int, float, str], ...]:
        return tuple(self._rank(name)(value) for name, value in zip(self._down, line, strict=True))


class Names:
    """Short names of the cases of one kernel: what nearly all share is left out."""

    def __init__(self, cases: Sequence[Mapping[str, CaseValue]]) -> None:
        axes = list(cases[0]) if cases else []
        counts = {axis: Counter(case.get(axis, "") for case in cases) for axis in axes}
        self._usual = {axis: found.most_common(1)[0][0] for axis, found in counts.items()}
        self._always = {
            axis
            for axis, found in counts.items()
            if len(found) > 2 and max(found.values()) < _NEARLY_ALL * len(cases)
        }

    def __call__(self, case: Mapping[str, CaseValue]) -> str:
        """Axes of many values, and others where the value is not the usual one."""
        told = [
            f"{axis} {value}"
            for axis, value in case.items()
            if axis in self._always or value != self._usual.get(axis)
        ]
        return ", ".join(told) or "usual"

    @property
    def usual(self) -> str:
        """What is left out of the names."""
        told = (f"{axis} {v}" for axis, v in self._usual.items() if axis not in self._always)
        return ", ".join(told)


def names_of(result: SweepResult, kernel: str) -> Names:
    """Of all cells of a kernel."""
    return Names([cell.case for cell in result.cells if cell.kernel == kernel])


class _Rank:
    """Sorts values as their axis lists them, then by size."""

    def __init__(self, order: Sequence[CaseValue]) -> None:
        self._order = list(order)

    def __call__(self, value: CaseValue) -> tuple[int, float, str]:
        place = self._order.index(value) if value in self._order else len(self._order)
        size = float(value) if isinstance(value, int | float) else 0.0
        return (0, size, "") if isinstance(value, int | float) else (place, size, str(value))


def _names(cells: Sequence[Cell]) -> list[str]:
    return list(cells[0].case) if cells else []


def _heat_map(grid: _Grid, standing: Standing, kernel: KernelResult, names: Names) -> Chart:
    shares = {id(row.cell): row for row in standing.rows}
    tiles: dict[tuple[int, int], Tile] = {}
    for cell in grid.cells:
        if cell.provider == standing.provider.name and grid.line(cell) in grid.rows:
            place = (grid.rows.index(grid.line(cell)), grid.columns.index(cell.case[grid.axis]))
            tiles[place] = _tile(cell, shares.get(id(cell)))
    ceiling = kernel.kernel.ceiling
    name = standing.provider.name
    title = f"{name}: {percent(standing.fraction, 0)} of the {ceiling} ceiling"
    return Chart(
        title=title,
        subtitle=f"{kernel.kernel.name}, percent of the {ceiling} ceiling; mean (geometric) of "
        f"{plural(len(standing.rows), 'cell')}",
        drawing=heatmap(
            [grid.title(line) for line in grid.rows],
            [str(value) for value in grid.columns],
            tiles,
            label=title,
            row_title="",
            column_title=grid.axis.replace("_", " "),
        ),
        table=cells_table(standing.rows, names),
    )


def _tile(cell: Cell, row: Row | None) -> Tile:
    name = sweep_results.case_name(cell.case)
    if row is None or row.fraction is None:
        return Tile(None, _MARKS.get(cell.outcome, ""), f"{name}: {cell.reason}", alarm=_bad(cell))
    tip = f"{name}: {microseconds(row.seconds * 1e6)}, {scaled(row.rate)}{row.unit}"
    return Tile(row.fraction, f"{row.fraction * 100:.0f}", tip)


def _bad(cell: Cell) -> bool:
    return cell.outcome not in ("ok", "unsupported")


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


def roofline_chart(result: SweepResult) -> Chart | None:
    """All timed cells that compute something, under the limits of the first device."""
    limits = sweep_results.ceilings(result.events).get(result.started.devices[0].index, {})
    points = list(_points(result))
    if not points or not {"read", "matmul"} <= limits.keys():
        return None
    used = [name for name in result.order if any(p.tip.startswith(f"{name} ") for p in points)]
    names = [(name, style_of(name, result.order), place_of(name, result.order)) for name in used]
    bandwidth, peak = limits["read"].value, limits["matmul"].value
    best = max(points, key=lambda point: point.rate)
    return Chart(
        title=f"Up to {percent(best.rate / peak, 0)} of the matrix units, "
        f"{scaled(best.rate)}FLOP/s",
        subtitle="operations per second over operations per byte; both axes logarithmic",
        drawing=roofline(points, bandwidth=bandwidth, peak=peak, names=names),
        table=Table(
            ("cell", "operations per byte", "operations per second"),
            tuple((p.tip, significant(p.intensity), scaled(p.rate)) for p in points[:MOST_CELLS]),
            words=1,
        ),
    )


def _points(result: SweepResult) -> Iterator[Point]:
    for row in result.rows:
        cost = row.cell.cost
        if cost and cost.flops and cost.read + cost.write:
            name = row.cell.provider
            yield Point(
                cost.flops / (cost.read + cost.write),
                cost.flops / row.seconds,
                style_of(name, result.order),
                place_of(name, result.order),
                f"{name} {row.cell.kernel} {sweep_results.case_name(row.cell.case)}",
            )


def speedup_table(result: SweepResult, kernel: KernelResult) -> Table:
    """Cell by cell, the time of the others over ours with 95 % intervals."""
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
    """Cells that ended badly, with the numbers of those that found no room."""
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
    """What the machine does at most, measured in the same run."""
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
    """Axis -> the values that cells had, and how often."""
    own = [cell for cell in cells if cell.kernel == kernel.kernel.name]
    return Table(
        ("axis", "values, cells"),
        tuple((name, ", ".join(_values(own, name))) for name in _names(own)),
        words=2,
    )


def _values(cells: Sequence[Cell], name: str) -> Iterator[str]:
    counts = Counter(cell.case[name] for cell in cells if name in cell.case)
    for value in sorted(counts, key=_Rank(())):
        yield f"{value}: {counts[value]:,}"
