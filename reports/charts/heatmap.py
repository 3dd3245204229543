"""Heat maps: a grid of tiles, each shaded by a share of one and labelled with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kvproof.reports.charts.axes import WIDTH
from kvproof.reports.values.svg import CHAR_WIDTH, Box, Drawing, Label, Shape, fit

SHADES = 10
"""Shades from 0 to 1; the style sheet has a class for each."""

_HEIGHT = 19
_TOP = 34
_MOST_LABEL = 190
"""Widest label of a row, pixels, if the tiles need the rest."""

_LEAST_TILE = 52


class Tile(NamedTuple):
    """One cell: `share` sets the shade; `text` repeats it, so that colour is never needed."""

    share: float | None
    """None: not measured; the tile is an outline with its text."""
    text: str
    tip: str = ""
    alarm: bool = False


def heatmap(
    rows: Sequence[str],
    columns: Sequence[str],
    tiles: Mapping[tuple[int, int], Tile],
    *,
    label: str,
    row_title: str,
    column_title: str,
) -> Drawing:
    """Tiles at (row, column); missing tiles stay empty."""
    room = max(_MOST_LABEL, WIDTH - 8 - _LEAST_TILE * len(columns))
    left = min(room, max((len(row) for row in (*rows, row_title)), default=0) * CHAR_WIDTH)
    width = (WIDTH - left - 8) / max(1, len(columns))
    shapes: list[Shape] = [
        Label(left, 12, row_title, "axis", "end"),
        Label(left + 8, 12, column_title, "axis"),
    ]
    for index, column in enumerate(columns):
        middle = left + 8 + (index + 0.5) * width
        shapes.append(Label(middle, _TOP - 6, fit(column, width), "axis", "middle"))
    for index, row in enumerate(rows):
        shapes.append(Label(left, _TOP + index * _HEIGHT + 13, fit(row, left + 6), "", "end"))
    for (row_index, column_index), tile in sorted(tiles.items()):
        x, y = left + 8 + column_index * width, _TOP + row_index * _HEIGHT
        shapes += _tile(tile, x, y, width)
    return Drawing(WIDTH, _TOP + len(rows) * _HEIGHT + 6, label, tuple(shapes))


def _tile(tile: Tile, x: float, y: float, width: float) -> list[Shape]:
    shade = "none" if tile.share is None else str(shade_of(tile.share))
    text = Label(
        x + width / 2, y + 13, fit(tile.text, width), "alarm" if tile.alarm else "", "middle"
    )
    return [Box(x + 1, y + 1, width - 2, _HEIGHT - 2, f"heat heat{shade}", tile.tip), text]


def shade_of(share: float) -> int:
    """Return 0 for nothing, `SHADES` - 1 for a share of 1 or more."""
    return min(SHADES - 1, max(0, int(share * SHADES)))
