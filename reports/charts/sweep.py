"""Charts of a sweep: heat maps and roofline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvproof.harness.records import sweep_results
from kvproof.harness.records.sweep_events import CaseValue, Cell
from kvproof.harness.records.sweep_results import Row
from kvproof.reports.charts.bench import place_of, style_of
from kvproof.reports.charts.heatmap import Tile, heatmap
from kvproof.reports.charts.roofline import Point, roofline
from kvproof.reports.model.sweep import KernelResult, Standing, SweepResult
from kvproof.reports.model.sweep_names import Names, Rank, axes_of, names_of
from kvproof.reports.model.sweep_tables import MOST_CELLS, cells_table
from kvproof.reports.values.svg import Chart, Table
from kvproof.reports.values.text import microseconds, percent, plural, scaled, significant

MOST_ROWS = 48
"""Most rows of a heat map; the table of numbers has all cells."""

_MARKS = {
    "wrong": "wrong",
    "crash": "crash",
    "timeout": "timeout",
    "out_of_resources": "no room",
    "unsupported": "–",  # noqa: RUF001 - a dash is what a table cell shows
}


def heat_maps(result: SweepResult, kernel: KernelResult) -> list[Chart]:
    """One map per provider with timed cells; rows and columns are the same in all maps."""
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
    """Return the axis with the most values; the kernel's own order breaks ties."""
    counts = {
        axis: len({cell.case.get(axis) for cell in cells} & set(values))
        for axis, values in kernel.kernel.axes.items()
    }
    return max(counts, key=lambda axis: counts[axis], default="")


class _Grid:
    """Rows and columns of a kernel's heat maps: one axis across, all others down."""

    def __init__(self, cells: Sequence[Cell], axis: str, kernel: KernelResult) -> None:
        self.axis = axis
        self._axes = kernel.kernel.axes
        self._down = [name for name in axes_of(cells) if name != axis]
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
        """Values that distinguish the row, first those that the row above does not have."""
        values = dict(zip(self._down, line, strict=True))
        place = self.rows.index(line)
        above = self.rows[place - 1 if place else min(1, len(self.rows) - 1)]
        order = sorted(
            zip(self._down, line, above, strict=True), key=lambda each: each[1] == each[2]
        )
        return self._short({name: values[name] for name, _, _ in order})

    def _rank(self, axis: str) -> Rank:
        return Rank(self._axes.get(axis, ()))

    def _line_rank(self, line: tuple[CaseValue, ...]) -> tuple[tuple[int, float, str], ...]:
        return tuple(self._rank(name)(value) for name, value in zip(self._down, line, strict=True))


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


def roofline_chart(result: SweepResult) -> Chart | None:
    """All timed cells with operations, under the limits of the first device."""
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
