"""Drawings as values: shapes with coordinates and classes; a template turns them into SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

CHAR_WIDTH = 6.4
"""Pixels of an average character in 12 px chart text; labels are cut by it."""


@dataclass(frozen=True)
class Box:
    """A rectangle with a tooltip."""

    kind: ClassVar[str] = "box"
    x: float
    y: float
    width: float
    height: float
    style: str
    tip: str = ""


@dataclass(frozen=True)
class Label:
    """A line of text; `anchor` is start, middle or end."""

    kind: ClassVar[str] = "label"
    x: float
    y: float
    text: str
    style: str = ""
    anchor: str = "start"


@dataclass(frozen=True)
class Line:
    """An open path through points."""

    kind: ClassVar[str] = "line"
    points: tuple[tuple[float, float], ...]
    style: str

    @property
    def path(self) -> str:
        """The points as SVG path data."""
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in self.points)


@dataclass(frozen=True)
class Dot:
    """A marker; `series` selects its shape, so that colour is never needed."""

    kind: ClassVar[str] = "dot"
    x: float
    y: float
    series: int
    style: str
    tip: str = ""

    @property
    def path(self) -> str:
        """Circle, square, diamond, triangle, in turn."""
        return _MARKERS[self.series % len(_MARKERS)]


Shape: TypeAlias = Box | Label | Line | Dot

_MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
    "M-3.5 -3.5h7v7h-7Z",
    "M0 -5L5 0L0 5L-5 0Z",
    "M0 -4.5L4.5 3.5H-4.5Z",
)


@dataclass(frozen=True)
class Drawing:
    """One picture; `label` is its description as text."""

    width: float
    height: float
    label: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class Table:
    """The numbers of a chart; columns after the first `words` are numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 0

    def filled(self) -> Table:
        """The same without columns of numbers that are empty in every row."""
        kept = [
            column
            for column in range(len(self.head))
            if column < self.words or any(row[column] for row in self.rows)
        ]
        head, *rows = (tuple(row[column] for column in kept) for row in (self.head, *self.rows))
        return Table(head, tuple(rows), self.words)


@dataclass(frozen=True)
class Chart:
    """A drawing with the finding as its title and its numbers as a table."""

    title: str
    subtitle: str
    drawing: Drawing
    table: Table


@dataclass(frozen=True)
class Scale:
    """Maps low..high to start..stop, linear or logarithmic."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Position of `value`, clipped to the ends."""
        low, high, value = (self._at(x) for x in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + min(1.0, max(0.0, share)) * (self.stop - self.start)

    def _at(self, value: float) -> float:
        return math.log10(max(value, 1e-12)) if self.log else value

    def ticks(self) -> list[float]:
        """Round values inside the range: about five, or the powers of ten."""
        return list(self._powers() if self.log else self._steps())

    def _powers(self) -> Iterator[float]:
        first, last = math.ceil(self._at(self.low) - 1e-9), math.floor(self._at(self.high) + 1e-9)
        marks = (1.0, 2.0, 5.0) if last - first < 2 else (1.0,)
        for power in range(first - 1, last + 1):
            yield from (m * 10.0**power for m in marks if self._holds(m * 10.0**power))

    def _steps(self) -> Iterator[float]:
        step = nice_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        yield from (index * step for index in range(first, last + 1))

    def _holds(self, value: float) -> bool:
        return self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)


def nice_step(rough: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    if rough <= 0 or not math.isfinite(rough):
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return float(next(m for m in (1, 2, 5, 10) if m * power >= rough * 0.999) * power)


def fit(text: str, pixels: float) -> str:
    """`text` cut to about `pixels`."""
    room = max(4, int(pixels / CHAR_WIDTH))
    return text if len(text) <= room else f"{text[: room - 1]}…"


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near the wanted ones, at least `gap` apart, within low..high if they fit."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    groups: list[tuple[float, int]] = []  # (centre, how many labels stand around it)
    for index in order:
        groups.append((wanted[index], 1))
        while len(groups) > 1 and _overlap(groups[-2], groups[-1], gap):
            (first, m), (second, n) = groups.pop(-2), groups.pop()
            groups.append(((first * m + second * n) / (m + n), m + n))
    places = [
        min(max(centre, low + gap * (size - 1) / 2), high - gap * (size - 1) / 2)
        + gap * (member - (size - 1) / 2)
        for centre, size in groups
        for member in range(size)
    ]
    return [places[order.index(index)] for index in range(len(wanted))]


def _overlap(first: tuple[float, int], second: tuple[float, int], gap: float) -> bool:
    return second[0] - first[0] < gap * (first[1] + second[1]) / 2
