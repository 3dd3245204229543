"""Pictures of a plan: one block, one request, the whole pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, cycle
from typing import TYPE_CHECKING, NamedTuple

from kvproof.reports.charts.axes import WIDTH
from kvproof.reports.charts.rows import Part, Row, bars
from kvproof.reports.values.plan_text import nbytes, numbers, sees
from kvproof.reports.values.svg import Box, Chart, Drawing, Label, Shape, Table
from kvproof.reports.values.text import percent, plural

if TYPE_CHECKING:
    from kvproof.reference.planner.summary import Alike, Summary

_LEFT, _RIGHT = 150, 130
_MOST = 60
"""Most requests drawn as boxes of their own in the pool."""


class Bar(NamedTuple):
    """One line of a bar chart."""

    name: str
    parts: list[tuple[int, str, str]]
    """Bytes, style and tip."""
    whole: int
    """Bytes of the whole width."""
    end: str


def block_chart(summary: Summary) -> Chart:
    """Show how much of a block the layers of each group fill."""
    lost = max((1 - run.filled / run.room for run in summary.groups if run.room), default=0.0)
    title = f"At most {percent(lost)} of a block is lost"
    if lost < 5e-4:
        title = "Every group fills its blocks"
    found = [_filled(run, style) for run, style in zip(summary.groups, _styles(), strict=False)]
    rows = [(run.filled, run.room) for run in summary.groups]
    return Chart(
        title,
        "one block of each group; for states the blocks of one state",
        _drawn(found, title),
        _table(("group", "filled, bytes", "there, bytes"), summary.groups, rows),
    )


def _filled(run: Alike, style: str) -> Bar:
    lost = run.room - run.filled
    parts = [
        (run.filled, style, f"{nbytes(run.filled)} filled"),
        (lost, "block free", f"{nbytes(lost)} lost"),
    ]
    share = percent(run.filled / run.room if run.room else 0.0)
    return Bar(_name(run), parts, run.room, f"{share} of {nbytes(run.room)}")


def request_chart(summary: Summary) -> Chart:
    """Show the bytes of one request, and the lost ones by cause."""
    needed = summary.request
    title = f"A request of {needed.length:,} tokens takes {nbytes(needed.bytes)}"
    rows = [(run.needed, run.rounding, run.padding) for run in summary.groups]
    whole = max(map(sum, rows), default=0)
    found = [
        Bar(_name(run), _spent(row, style), whole, nbytes(sum(row)))
        for run, row, style in zip(summary.groups, rows, _styles(), strict=False)
    ]
    return Chart(
        title,
        "bytes of all workers; pale: blocks beyond the tokens needed, dashed: padding",
        _drawn(found, title),
        _table(
            ("group", "needed, bytes", "rounding, bytes", "padding, bytes"), summary.groups, rows
        ),
    )


def _spent(row: tuple[int, ...], style: str) -> list[tuple[int, str, str]]:
    styles, words = (style, "quiet", "block free"), ("needed", "rounding", "padding")
    return [
        (size, how, f"{nbytes(size)} {word}")
        for size, how, word in zip(row, styles, words, strict=True)
    ]


def pool_chart(summary: Summary) -> Chart:
    """Show the requests that fit the pool, and the unused rest."""
    plan, requests = summary.plan, summary.capacity.requests
    each = sum(summary.request.blocks)
    rest = plan.usable - each * requests
    title = f"{plural(requests, 'request')} of {summary.request.length:,} tokens run at once"
    subtitle = f"the pool of {plural(plan.num_blocks, 'block')}"
    if requests > _MOST:
        subtitle += f"; each of {_MOST} boxes stands for {requests / _MOST:.1f} requests"
    caption = f"{requests:,} x {each:,} blocks, {rest:,} left, 1 null"
    shapes = (*_requests(plan.num_blocks, requests, each), Label(0, 44, caption, "axis"))
    head = ("blocks", "per request", "requests", "left", "tokens in all")
    row = (plan.num_blocks, each, requests, rest, summary.capacity.tokens)
    table = Table(head, (tuple(f"{n:,}" for n in row),))
    return Chart(title, subtitle, Drawing(WIDTH, 50, title, shapes), table)


def _requests(blocks: int, requests: int, each: int) -> list[Shape]:
    shown = min(requests, _MOST)
    wide = WIDTH / max(1, blocks) * each * requests / max(1, shown)
    shapes: list[Shape] = [
        Box(wide * n, 2, max(0.5, wide - 1), 24, f"s{n % 2 * 2}", "requests") for n in range(shown)
    ]
    start = wide * shown
    return [*shapes, Box(start, 2, max(0.0, WIDTH - start), 24, "block free", "free")]


def _name(run: Alike) -> str:
    return f"{numbers(run)}: {sees(run.group)}"


def _styles() -> Iterator[str]:
    return cycle(("s0", "s1", "s2", "s3", "s4"))


def _table(head: tuple[str, ...], runs: Sequence[Alike], rows: Sequence[tuple[int, ...]]) -> Table:
    cells = [(numbers(run), *(f"{n:,}" for n in row)) for run, row in zip(runs, rows, strict=True)]
    return Table(head, tuple(cells), words=1)


def _drawn(found: Sequence[Bar], label: str) -> Drawing:
    room = WIDTH - _LEFT - _RIGHT
    rows = []
    for bar in found:
        widths = [room * size / bar.whole if bar.whole else 0.0 for size, _, _ in bar.parts]
        starts = accumulate([0.0, *widths])
        parts = [
            Part(start, width, style, tip)
            for start, width, (_, style, tip) in zip(starts, widths, bar.parts, strict=False)
        ]
        rows.append(Row(bar.name, parts, bar.end))
    return bars(rows, label, left=_LEFT, rule=True)
