"""Picture of the blocks when a failure occurred: request tables as rows of boxes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from kvproof.harness.records.events import BlockView, Failure
from kvproof.reports.values.svg import CHAR_WIDTH, Box, Drawing, Label, Shape, Table, fit
from kvproof.reports.values.text import listed

_WIDTH, _LEFT, _COLUMN = 1060, 128, 186
_MONO = 6.95
"""Width of a monospace character, pixels."""

_MOST_LINES = 4
_PER_ROW = (_WIDTH - _LEFT) // _COLUMN
_MOST_ROWS = 24


def block_rows(failure: Failure) -> list[tuple[str, list[BlockView]]]:
    """(title, blocks) per request, then the blocks that no table names."""
    known = {view.block: view for view in failure.blocks}
    rows = [
        (request, [known.get(block) or _undescribed(block, request) for block in table])
        for request, table in failure.tables.items()
    ]
    named = {block for table in failure.tables.values() for block in table}
    others = [view for view in failure.blocks if view.block not in named]
    return [*rows, ("no table", others)] if others else rows


def _undescribed(block: int, request: str) -> BlockView:
    return BlockView(block=block, owners=[request], writer="", state="held")


def block_picture(failure: Failure) -> Drawing | None:
    """Draw the rows; None if the failure names no block."""
    lines = [
        (title if not part else "", chunk)
        for title, views in block_rows(failure)
        for part, chunk in _chunks(views)
    ][:_MOST_ROWS]
    if not lines:
        return None
    shapes: list[Shape] = []
    y = 0.0
    for title, views in lines:
        written = max((len(_writer(view)) for view in views), default=1)
        shapes += _row(title, views, y, 43.0 + 15 * written)
        y += 51 + 15 * written
    return Drawing(_WIDTH, y, "Blocks at the moment of the failure", tuple(shapes))


def _chunks(views: Sequence[BlockView]) -> Iterator[tuple[int, Sequence[BlockView]]]:
    for start in range(0, max(1, len(views)), _PER_ROW):
        yield start, views[start : start + _PER_ROW]


def _row(title: str, views: Sequence[BlockView], y: float, height: float) -> list[Shape]:
    middle = y + height / 2 + 4
    shapes: list[Shape] = [Label(0, middle, fit(title, _LEFT - 12), "strong")] if title else []
    for index, view in enumerate(views):
        shapes += _block(view, _LEFT + index * _COLUMN, y, height)
    return shapes if views else [*shapes, Label(_LEFT, middle, "holds no blocks", "axis")]


def _block(view: BlockView, x: float, y: float, height: float) -> list[Shape]:
    state = ("! suspect", "alarm") if view.suspect else (view.state, "axis")
    lines = [
        Label(x + 8, y + 36 + 15 * place, line, "mono") for place, line in enumerate(_writer(view))
    ]
    return [
        Box(x, y + 4, _COLUMN - 8, height, f"block {block_class(view)}", describe(view)),
        Label(x + 8, y + 20, f"block {view.block}", "strong"),
        Label(x + _COLUMN - 16, y + 20, *state, "end"),
        *lines,
        Label(x + 8, y + height - 5, fit(owners(view), _COLUMN - 22), "axis"),
    ]


def _writer(view: BlockView) -> list[str]:
    where, _, what = (view.writer or "never written").partition(": ")
    room = int((_COLUMN - 24) / _MONO)
    lines = textwrap.wrap(what, room, max_lines=_MOST_LINES - 1, placeholder="…")
    return [fit(where, room * CHAR_WIDTH), *lines]


def block_class(view: BlockView) -> str:
    """Style of a block's box."""
    return "suspect" if view.suspect else view.state


def owners(view: BlockView) -> str:
    """List the holders of the block."""
    if not view.owners:
        return "holder unknown" if view.state == "held" else ""
    return f"{'shared by' if len(view.owners) > 1 else 'held by'} {listed(view.owners, 6)}"


def describe(view: BlockView) -> str:
    """One line about a block."""
    suspect = "! suspect, " if view.suspect else ""
    held = owners(view) or view.state
    content = f"holds {view.writer}" if view.writer else "never written"
    return f"block {view.block}: {suspect}{held}, {content}"


def block_table(failure: Failure) -> Table:
    """Table of the blocks, in order of id."""
    tables: dict[int, list[str]] = {}
    for request, table in failure.tables.items():
        for place, block in enumerate(table):
            tables.setdefault(block, []).append(f"{request}[{place}]")
    rows = tuple(
        (str(view.block), "! suspect" if view.suspect else "", view.state, ", ".join(view.owners),
         view.writer or "never written", ", ".join(tables.get(view.block, [])))
        for view in sorted(failure.blocks, key=lambda view: view.block)
    )  # fmt: skip
    return Table(
        ("block", "suspect", "state", "holders", "last written by", "in tables"), rows, words=6
    )
