"""Bars in rows: a name, boxes from left to right, and a figure at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvproof.reports.charts.axes import WIDTH
from kvproof.reports.values.svg import Box, Drawing, Label, Line, Shape, fit

PITCH = 22
"""Pixels from one row to the next."""

_BAR = 15
_LEAST = 0.2
"""Narrower boxes are not drawn, pixels."""


class Part(NamedTuple):
    """One box of a row, in pixels from the start of all bars."""

    start: float
    width: float
    style: str
    tip: str = ""


class Row(NamedTuple):
    """One line of the chart."""

    name: str
    parts: Sequence[Part]
    end: str
    """The figure after the last box."""


def bars(rows: Sequence[Row], label: str, *, left: int, rule: bool = False) -> Drawing:
    """Rows from top to bottom; the bars begin at `left`, with `rule` at a line."""
    shapes: list[Shape] = []
    for index, row in enumerate(rows):
        y = index * PITCH
        end = left + max((part.start + part.width for part in row.parts), default=0.0)
        shapes += [
            Label(left - 8, y + 14, fit(row.name, left - 8), "axis", "end"),
            *(
                Box(left + part.start, y + 2, part.width, _BAR, part.style, part.tip)
                for part in row.parts
                if part.width > _LEAST
            ),
            Label(end + 6, y + 14, row.end),
        ]
    height = PITCH * max(1, len(rows))
    if rule:
        shapes.append(Line(((left, 0), (left, height)), "rule"))
    return Drawing(WIDTH, height, label, tuple(shapes))
