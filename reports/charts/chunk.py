"""Picture of a chunk: which bytes belong to which group (G2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvproof.reports.charts.axes import WIDTH
from kvproof.reports.values.plan_text import nbytes
from kvproof.reports.values.svg import Box, Chart, Drawing, Label, Line, Shape, Table, fit
from kvproof.reports.values.text import clean, plural

if TYPE_CHECKING:
    from kvproof.reference.transfer.chunk_layout import ChunkGroup, ChunkLayout

_HEIGHT, _BAR, _LEFT, _RIGHT = 26, 16, 190, 120
_STYLES = ("s0", "s1", "s2", "s3", "s4")


def chunk_chart(layout: ChunkLayout) -> Chart:
    """Show where each group lies in a chunk, one line per group."""
    title = f"A chunk of {plural(layout.tokens, 'token')} takes {nbytes(layout.nbytes)}"
    head = ("group", "element", "shape", "first byte", "bytes")
    rows = [
        (
            f"{index}: {_name(group)}",
            group.geometry.dtype,
            " x ".join(map(str, group.shape)),
            f"{group.offset:,}",
            f"{group.nbytes:,}",
        )
        for index, group in enumerate(layout.groups)
    ]
    return Chart(
        title,
        "one flat range of bytes; shapes are planes x layers x tokens x heads x width",
        Drawing(WIDTH, _HEIGHT * len(layout.groups), title, tuple(_shapes(layout))),
        Table(head, tuple(rows), words=3),
    )


def _shapes(layout: ChunkLayout) -> list[Shape]:
    shapes: list[Shape] = []
    scale = (WIDTH - _LEFT - _RIGHT) / max(1, layout.nbytes)
    for index, group in enumerate(layout.groups):
        y, x = index * _HEIGHT, _LEFT + scale * group.offset
        size, style = nbytes(group.nbytes), _STYLES[index % len(_STYLES)]
        width = max(0.5, scale * group.nbytes)
        name = fit(f"{index}: {_name(group)}", _LEFT - 8)
        shapes += [
            Label(_LEFT - 8, y + 14, name, "axis", "end"),
            Box(x, y + 2, width, _BAR, style, f"{size} from byte {group.offset:,} on"),
            Label(x + width + 6, y + 14, size),
        ]
    return [*shapes, Line(((_LEFT, 0), (_LEFT, _HEIGHT * len(layout.groups))), "rule")]


def _name(group: ChunkGroup) -> str:
    first, *others = group.geometry.names
    return clean(f"{first} and {len(others)} more" if others else first)
