"""Picture of a chunk: which bytes belong to which group (G2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvproof.reports.charts.axes import WIDTH
from kvproof.reports.charts.rows import Part, Row, bars
from kvproof.reports.values.plan_text import nbytes
from kvproof.reports.values.svg import Chart, Table
from kvproof.reports.values.text import clean, plural

if TYPE_CHECKING:
    from kvproof.reference.transfer.chunk_layout import ChunkGroup, ChunkLayout

_LEFT, _RIGHT = 190, 120
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
    scale = (WIDTH - _LEFT - _RIGHT) / max(1, layout.nbytes)
    drawn = [_row(index, group, scale) for index, group in enumerate(layout.groups)]
    return Chart(
        title,
        "one flat range of bytes; shapes are planes x layers x tokens x heads x width",
        bars(drawn, title, left=_LEFT, rule=True),
        Table(head, tuple(rows), words=3),
    )


def _row(index: int, group: ChunkGroup, scale: float) -> Row:
    size, style = nbytes(group.nbytes), _STYLES[index % len(_STYLES)]
    tip = f"{size} from byte {group.offset:,} on"
    width = max(0.5, scale * group.nbytes)
    return Row(f"{index}: {_name(group)}", [Part(scale * group.offset, width, style, tip)], size)


def _name(group: ChunkGroup) -> str:
    first, *others = group.geometry.names
    return clean(f"{first} and {len(others)} more" if others else first)
