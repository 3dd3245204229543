"""Drawings of a history: one path per trend, one bar per span of equal outcomes."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.harness.analysis.history import Point, Strip, Trend, began
from kvproof.harness.analysis.series import UNITS
from kvproof.harness.records.run_directory import Run
from kvproof.reports.charts.axes import WIDTH, y_axis
from kvproof.reports.model.compare import METRICS
from kvproof.reports.values.svg import Box, Chart, Drawing, Label, Line, Scale, Shape, Table, fit
from kvproof.reports.values.text import clean, plural, significant, trimmed

_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 130, 64, 84, 10, 104
_NAMES, _STRIPS, _LINE = 300, 1060, 16

_STYLES = {
    "pass": "heat3", "killed": "heat6", "equivalent": "heatnone", "fail": "block suspect",
    "left_out": "heatnone", "survived": "block suspect", "inconclusive": "s1",
    "expected_failure": "s3", "unsupported": "heatnone",
}  # fmt: skip
"""Outcome -> fill of its span; outcomes that need attention have a frame."""


def trend_chart(trend: Trend, runs: Sequence[Run]) -> Chart:
    """A figure over the runs, with its levels; the title states the last change."""
    unit = UNITS[trend.key.metric]
    values = [point.value for point in trend.points]
    x = Scale(0, max(1, len(runs) - 1), _LEFT, WIDTH - _RIGHT)
    low, high = min(values), max(values)
    room = (high - low) * 0.1 or abs(high) * 0.1 or 1.0
    y = Scale(low - room, high + room, _BOTTOM, _TOP)
    path = tuple((x(point.run), y(point.value)) for point in trend.points)
    shapes: list[Shape] = [*_axes(x, y, runs), Line(path, "curve s0")]
    for step in trend.steps:
        at = x(trend.points[step.at].run)
        shapes.append(Line(((at, _TOP), (at, _BOTTOM)), "curve limit"))
    if len(path) == 1:
        shapes.append(Box(path[0][0] - 2, path[0][1] - 2, 4, 4, "s0"))
    last = f"{significant(values[-1])} {unit}".strip()
    shapes.append(Label(WIDTH - _RIGHT + 8, path[-1][1] + 4, last, "s0"))
    title = _title(trend, runs)
    return Chart(
        title=clean(f"{trend.key.subject}, {METRICS[trend.key.metric]}: {title}"),
        subtitle=clean(f"{trend.key.detail}; {trend.machine}; {plural(len(values), 'run')}"),
        drawing=Drawing(WIDTH, _HEIGHT, title, tuple(shapes)),
        table=Table((), ()),
    )


def _title(trend: Trend, runs: Sequence[Run]) -> str:
    if not trend.steps:
        return "no change of level"
    step = trend.steps[-1]
    when = began(runs[trend.points[step.at].run])
    return f"{(step.ratio - 1) * 100:+.1f} % since {when:%Y-%m-%d}"


def _axes(x: Scale, y: Scale, runs: Sequence[Run]) -> list[Shape]:
    lines = y_axis(y, lambda value: trimmed(significant(value, 4)), _LEFT, WIDTH - _RIGHT)
    days = _days(runs, x(0), x(len(runs) - 1), _HEIGHT - 8)
    return [*lines, *days[: len(runs)]]


def _days(runs: Sequence[Run], left: float, right: float, height: float) -> list[Shape]:
    """Return the days of the first and the last run."""
    first, last = (f"{began(run):%Y-%m-%d}" for run in (runs[0], runs[-1]))
    return [Label(left, height, first, "axis"), Label(right, height, last, "axis", "end")]


def growth_chart(what: str, points: Sequence[Point], runs: Sequence[Run]) -> Chart | None:
    """A count over the runs; None if no run counted it."""
    if not points:
        return None
    x = Scale(0, max(1, len(runs) - 1), _LEFT, WIDTH - _RIGHT)
    y = Scale(0, max(point.value for point in points) * 1.1, _BOTTOM, _TOP)
    path = tuple((x(point.run), y(point.value)) for point in points)
    first, last = points[0].value, points[-1].value
    title = f"{what}: {first:,.0f} to {last:,.0f}"
    label = Label(WIDTH - _RIGHT + 8, path[-1][1] + 4, f"{last:,.0f}", "s0")
    dot = Box(path[-1][0] - 2, path[-1][1] - 2, 4, 4, "s0")
    shapes = (*_axes(x, y, runs), Line(path, "curve s0"), dot, label)
    return Chart(title, plural(len(points), "run"), Drawing(WIDTH, _HEIGHT, title, shapes),
                 Table((), ()))  # fmt: skip


def strip_chart(what: str, strips: Sequence[Strip], runs: Sequence[Run]) -> Chart:
    """One line per entry, one bar per span of equal outcomes."""
    x = Scale(0, max(1, len(runs)), _NAMES, _STRIPS)
    shapes: list[Shape] = []
    for line, strip in enumerate(strips):
        shapes += _strip(strip, line * _LINE, x)
    height = len(strips) * _LINE + 22
    shapes += _days(runs, _NAMES, _STRIPS, height - 6)
    changed = sum(strip.changed for strip in strips)
    title = f"{plural(len(strips), 'line')} of {what}, {changed} changed"
    seen = dict.fromkeys(outcome for strip in strips for _, _, outcome in strip.spans)
    return Chart(
        title=title,
        subtitle=f"outcomes over the runs: {', '.join(seen)}; names in the mouse's tip",
        drawing=Drawing(_STRIPS, height, title, tuple(shapes)),
        table=strip_table(strips, runs),
    )


def _strip(strip: Strip, y: float, x: Scale) -> list[Shape]:
    name = clean(strip.name)
    shapes: list[Shape] = [Label(_NAMES - 8, y + 12, fit(name, _NAMES - 16), "", "end")]
    for first, last, outcome in strip.spans:
        width = max(2.0, x(last + 1) - x(first))
        style = _STYLES.get(outcome, "s2")
        shapes.append(Box(x(first), y + 2, width, _LINE - 4, style, outcome))
    return shapes


def strip_table(strips: Sequence[Strip], runs: Sequence[Run]) -> Table:
    """Last outcome of each line, with its first run."""
    rows = [
        (clean(strip.name), outcome.replace("_", " "), f"{began(runs[first]):%Y-%m-%d}")
        for strip in strips
        for first, _, outcome in strip.spans[-1:]
    ]
    return Table(("name", "last", "since"), tuple(rows), 3)
