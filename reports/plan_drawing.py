"""Pictures of a plan: one block, one request, the whole pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import NamedTuple, TypeAlias

from kvproof.reference.plan import Plan
from kvproof.reference.plan_sizes import capacity, need, useful_bytes
from kvproof.reports.plan_words import nbytes, sees
from kvproof.reports.plot import WIDTH
from kvproof.reports.svg import Box, Chart, Drawing, Label, Line, Shape, Table, fit
from kvproof.reports.text import percent, plural

_HEIGHT, _BAR, _LEFT, _RIGHT = 26, 16, 150, 110
_MOST = 60
"""Requests drawn one by one in the pool."""

Runs: TypeAlias = Sequence[tuple[str, int]]
"""Name and first group of each run of groups alike."""


def block_chart(plan: Plan, runs: Runs) -> Chart:
    """Show how far the layers of each group fill a row."""
    rows = [filling(plan, index) for _, index in runs]
    lost = max((1 - filled / room for filled, room in rows if room), default=0.0)
    title = f"At most {percent(lost)} of a block is lost"
    if lost < 5e-4:
        title = "Every group fills its blocks"
    bars = []
    for style, run, (filled, room) in zip(_styles(), runs, rows, strict=False):
        parts = [
            (filled, style, f"{nbytes(filled)} filled"),
            (room - filled, "block free", f"{nbytes(room - filled)} lost"),
        ]
        end = f"{percent(filled / room if room else 0)} of {nbytes(room)}"
        bars.append(Bar(_name(plan, run), parts, room, end))
    return Chart(
        title,
        "one block of each group; for states the blocks of one state",
        _drawn(bars, title),
        _table(("group", "filled, bytes", "there, bytes"), runs, rows),
    )


def filling(plan: Plan, index: int) -> tuple[int, int]:
    """Return bytes filled, and bytes there, of one block or of the blocks of one state."""
    group = plan.groups[index]
    filled = sum(worker.used[index] for worker in plan.workers)
    rows = sum(worker.state_row_bytes for worker in plan.workers)
    if group.kind == "state" and rows:
        return filled, rows
    count = group.state_blocks if group.kind == "state" else 1
    return filled, count * sum(worker.block_bytes for worker in plan.workers)


def request_chart(plan: Plan, runs: Runs) -> Chart:
    """Show where the bytes of one request are, and which of them are lost to what."""
    length = plan.settings.max_len
    ends = [*(index for _, index in runs[1:]), len(plan.groups)]
    spans = [range(first, end) for (_, first), end in zip(runs, ends, strict=True)]
    rows = [_spent(plan, span, length) for span in spans]
    whole = max((sum(row) for row in rows), default=0)
    title = f"A request of {length:,} tokens takes {nbytes(need(plan, length).bytes)}"
    bars = []
    for style, run, row in zip(_styles(), runs, rows, strict=False):
        words = ("needed", "rounding", "padding")
        parts = [
            (size, how, f"{nbytes(size)} {word}")
            for size, how, word in zip(row, (style, "quiet", "block free"), words, strict=True)
        ]
        bars.append(Bar(_name(plan, run), parts, whole, nbytes(sum(row))))
    return Chart(
        title,
        "bytes of all workers; pale: blocks beyond the tokens needed, dashed: padding",
        _drawn(bars, title),
        _table(("groups", "needed, bytes", "rounding, bytes", "padding, bytes"), runs, rows),
    )


def _styles() -> Iterator[str]:
    """Colours in turn, without end."""
    return cycle(("s0", "s1", "s2", "s3", "s4"))


def _table(head: tuple[str, ...], runs: Runs, rows: Sequence[tuple[int, ...]]) -> Table:
    cells = [(run[0], *(f"{n:,}" for n in row)) for run, row in zip(runs, rows, strict=True)]
    return Table(head, tuple(cells), words=1)


def _spent(plan: Plan, groups: range, length: int) -> tuple[int, int, int]:
    """Return bytes needed, lost to rounding, lost to padding by some groups alike."""
    useful = padding = rounding = 0
    blocks = plan.blocks(length)
    for worker in plan.workers:
        for index in groups:
            needed = useful_bytes(plan, worker, index, length)
            state = plan.groups[index].kind == "state"
            filled = needed if state else worker.used[index] * blocks[index]
            useful += needed
            rounding += filled - needed
            padding += worker.block_bytes * blocks[index] - filled
    return useful, rounding, padding


def pool_chart(plan: Plan) -> Chart:
    """Show the requests that fit the pool, and what is left beside them."""
    stated = capacity(plan)
    each = sum(plan.blocks(plan.settings.max_len))
    rest = plan.usable - each * stated.requests
    title = f"{plural(stated.requests, 'request')} of {plan.settings.max_len:,} tokens run at once"
    subtitle = f"the pool of {plural(plan.num_blocks, 'block')}"
    if stated.requests > _MOST:
        subtitle += f"; each of {_MOST} boxes stands for {stated.requests / _MOST:.1f} requests"
    caption = f"{stated.requests:,} x {each:,} blocks, {rest:,} left, 1 null"
    shapes = (*_requests(plan, stated.requests, each), Label(0, 44, caption, "axis"))
    head = ("blocks", "per request", "requests", "left", "tokens in all")
    row = (plan.num_blocks, each, stated.requests, rest, stated.tokens)
    table = Table(head, (tuple(f"{n:,}" for n in row),))
    return Chart(title, subtitle, Drawing(WIDTH, 50, title, shapes), table)


def _requests(plan: Plan, requests: int, each: int) -> list[Shape]:
    """Draw at most `_MOST` boxes of requests, and a dashed one for what is left."""
    scale = WIDTH / max(1, plan.num_blocks)
    shown = min(requests, _MOST)
    wide = scale * each * requests / max(1, shown)
    shapes: list[Shape] = [
        Box(wide * n, 2, max(0.5, wide - 1), 24, f"s{n % 2 * 2}", "one request")
        for n in range(shown)
    ]
    start = wide * shown
    return [*shapes, Box(start, 2, max(0.0, WIDTH - start), 24, "block free", "free")]


def _name(plan: Plan, run: tuple[str, int]) -> str:
    return f"{run[0]}: {sees(plan.groups[run[1]])}"


class Bar(NamedTuple):
    """One line of a bar chart."""

    name: str
    parts: list[tuple[int, str, str]]
    """Bytes, style and tip."""
    whole: int
    """Bytes of the whole width."""
    end: str


def _drawn(bars: Sequence[Bar], label: str) -> Drawing:
    shapes: list[Shape] = []
    room = WIDTH - _LEFT - _RIGHT
    for index, bar in enumerate(bars):
        y, x = index * _HEIGHT, float(_LEFT)
        shapes.append(Label(_LEFT - 8, y + 14, fit(bar.name, _LEFT - 8), "axis", "end"))
        for size, style, tip in bar.parts:
            width = room * size / bar.whole if bar.whole else 0.0
            if width > 0.2:
                shapes.append(Box(x, y + 2, width, _BAR, style, tip))
            x += width
        shapes.append(Label(x + 6, y + 14, bar.end))
    shapes.append(Line(((_LEFT, 0), (_LEFT, _HEIGHT * len(bars))), "rule"))
    return Drawing(WIDTH, max(_HEIGHT, _HEIGHT * len(bars)), label, tuple(shapes))
