"""Roofline: operations per second over operations per byte, under the machine's limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvproof.reports.charts.axes import WIDTH, x_axis, y_axis
from kvproof.reports.values.svg import Dot, Drawing, Label, Line, Scale, Shape, fit
from kvproof.reports.values.text import scaled, tick

_HEIGHT = 300
_RIGHT, _TOP, _BOTTOM = 16, 14, 40
_SIDES = (58, WIDTH - _RIGHT)


class Point(NamedTuple):
    """One timed cell."""

    intensity: float
    """Operations per byte that must move."""
    rate: float
    """Operations per second."""
    style: str
    marker: int
    tip: str


def roofline(
    points: Sequence[Point], *, bandwidth: float, peak: float, names: Sequence[tuple[str, str, int]]
) -> Drawing:
    """Points under `bandwidth` (bytes/s) and `peak` (operations/s).

    `names`: (name, style, marker) of the series, the key above the axis.
    """
    x, y = _scales(points, bandwidth, peak)
    knee = peak / bandwidth
    roof = tuple((x(i), y(min(peak, i * bandwidth))) for i in (x.low, min(knee, x.high), x.high))
    shapes: list[Shape] = [
        *x_axis(x, x.ticks(), "operations per byte", *_SIDES, _HEIGHT - _BOTTOM),
        *y_axis(y, tick, *_SIDES),
        Line(roof, "curve limit"),
        Label(x(x.low) + 6, y(min(peak, x.low * bandwidth)) - 8, f"{scaled(bandwidth)}B/s", "axis"),
        Label(WIDTH - _RIGHT, y(peak) - 6, f"{scaled(peak)}FLOP/s", "axis", "end"),
        *(Dot(x(p.intensity), y(p.rate), p.marker, p.style, p.tip) for p in points),
        *_key(names),
    ]
    return Drawing(WIDTH, _HEIGHT, "roofline", tuple(shapes))


def _scales(points: Sequence[Point], bandwidth: float, peak: float) -> tuple[Scale, Scale]:
    knee = peak / bandwidth
    intensities = [p.intensity for p in points] + [knee]
    rates = [p.rate for p in points] + [peak]
    return (
        Scale(min(intensities) / 2, max(intensities) * 2, *_SIDES, log=True),
        Scale(min(rates) / 2, max(rates) * 1.5, _HEIGHT - _BOTTOM, _TOP, log=True),
    )


def _key(names: Sequence[tuple[str, str, int]]) -> list[Shape]:
    shapes: list[Shape] = []
    for index, (name, style, marker) in enumerate(names):
        height = _HEIGHT - _BOTTOM - 14 - 15 * (len(names) - 1 - index)
        shapes.append(Dot(WIDTH - 130, height - 4, marker, style))
        shapes.append(Label(WIDTH - 120, height, fit(name, 110), style))
    return shapes
