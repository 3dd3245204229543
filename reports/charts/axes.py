"""Lines and measured points over two axes; each series is labelled at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from kvproof.reports.values.svg import Dot, Drawing, Label, Line, Scale, Shape, Table, fit, spread
from kvproof.reports.values.text import tick

WIDTH = 520
"""Width of every chart, pixels; two charts fit side by side."""

_TOP, _LEFT, _RIGHT, _BOTTOM = 14, 48, 112, 38
_PLOT_HEIGHT = 250


@dataclass(frozen=True)
class Series:
    """One labelled line; a series of one point is only a marker."""

    name: str
    points: tuple[tuple[float, float], ...]
    style: str
    marker: int = 0
    intervals: tuple[tuple[float, float], ...] = ()
    """(low, high) of each point that was measured more than once."""


def plot(
    series: Sequence[Series],
    label: str,
    x_title: str,
    y_range: tuple[float, float],
    y_format: Callable[[float], str],
    *,
    log_y: bool = False,
) -> Drawing:
    """Lines and points over a shared x axis, logarithmic where all x are positive."""
    xs = [x for line in series for x, _ in line.points] or [1.0]
    x = Scale(min(xs), max(xs), _LEFT + 10, WIDTH - _RIGHT - 10, log=min(xs) > 0)
    y = Scale(*y_range, _PLOT_HEIGHT - _BOTTOM, _TOP, log=log_y)
    marks = chain.from_iterable(_draw(line, x, y) for line in series)
    places = sorted(set(xs))
    shown = _apart(x, places if len(places) <= 6 else x.ticks())
    sides = (_LEFT, WIDTH - _RIGHT)
    axes = [
        *x_axis(x, shown, x_title, *sides, _PLOT_HEIGHT - _BOTTOM),
        *y_axis(y, y_format, *sides),
    ]
    return Drawing(WIDTH, _PLOT_HEIGHT, label, (*axes, *marks, *_names(series, x, y)))


def _draw(series: Series, x: Scale, y: Scale) -> list[Shape]:
    placed = tuple((x(px), y(py)) for px, py in series.points)
    shapes: list[Shape] = []
    for (px, _), (low, high) in zip(placed, series.intervals, strict=False):
        shapes.append(Line(((px, y(low)), (px, y(high))), "whisker"))
    if len(placed) > 1:
        shapes.append(Line(placed, f"curve {series.style}"))
    if series.style != "limit" or len(placed) == 1:
        shapes += [Dot(px, py, series.marker, series.style, series.name) for px, py in placed]
    return shapes


def _names(series: Sequence[Series], x: Scale, y: Scale) -> list[Shape]:
    ends = [(x(line.points[-1][0]), y(line.points[-1][1])) for line in series]
    heights = spread([end[1] for end in ends], 15, _TOP, _PLOT_HEIGHT - _BOTTOM)
    shapes: list[Shape] = []
    for line, (px, py), height in zip(series, ends, heights, strict=True):
        shapes.append(Line(((px + 6, py), (px + 16, height)), "leader"))
        shapes.append(Label(px + 19, height + 4, fit(line.name, WIDTH - px - 19), line.style))
    return shapes


def x_axis(
    scale: Scale, values: Sequence[float], title: str, left: float, right: float, base: float
) -> list[Shape]:
    """Return the rule at height `base` from `left` to `right`, with these values and the title."""
    shapes: list[Shape] = [Line(((left, base), (right, base)), "rule")]
    for value in values:
        shapes.append(Line(((scale(value), base), (scale(value), base + 4)), "rule"))
        shapes.append(Label(scale(value), base + 16, tick(value), "axis", "middle"))
    return [*shapes, Label((left + right) / 2, base + 32, title, "axis", "middle")]


def _apart(scale: Scale, values: Sequence[float]) -> list[float]:
    """Return values whose labels do not touch; the last value is always among them."""
    kept: list[float] = []
    for value in reversed(values):
        if not kept or scale(kept[-1]) - scale(value) >= 34:
            kept.append(value)
    return kept


def y_axis(scale: Scale, shown: Callable[[float], str], left: float, right: float) -> list[Shape]:
    """Return a line from `left` to `right` at each tick, with its value."""
    shapes: list[Shape] = []
    for value in scale.ticks():
        height = scale(value)
        shapes.append(Line(((left, height), (right, height)), "grid"))
        shapes.append(Label(left - 6, height + 4, shown(value), "axis", "end"))
    return shapes


def series_table(x: str, series: Sequence[Series], shown: Callable[[float], str]) -> Table:
    """One line per x, one column per series."""
    places = sorted({px for line in series for px, _ in line.points})
    values = [dict(line.points) for line in series]
    rows = tuple(
        (f"{px:,.0f}", *(shown(found[px]) if px in found else "" for found in values))
        for px in places
    )
    return Table((x, *(line.name for line in series)), rows)
