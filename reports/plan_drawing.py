"""Pictures of a plan: one block, one request, the whole pool."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.reference.plan import Plan
from kvproof.reference.plan_sizes import capacity, need, useful_bytes
from kvproof.reports.plan_words import nbytes, sees
from kvproof.reports.plot import WIDTH
from kvproof.reports.svg import Box, Chart, Drawing, Label, Line, Shape, Table, fit
from kvproof.reports.text import percent, plural

_HEIGHT, _BAR, _LEFT, _RIGHT = 26, 16, 150, 110
_MOST = 60
"""Requests drawn one by one in the pool."""

Runs = Sequence[tuple[str, int]]
"""Name and first group of each run of groups alike."""


def block_chart(plan: Plan, runs: Runs) -> Chart:
    """Show how far the layers of each group fill a row."""
    rows = [_filling(plan, index) for _, index in runs]
    lost = max((1 - filled / room for filled, room in rows if room), default=0.0)
    title = (
        "Every group fills its blocks"
        if lost < 5e-4
        else f"At most {percent(lost)} of a block is lost"
    )
    bars = [(_name(plan, run), [(filled, f"s{i % 5}", f"{nbytes(filled)} filled"),
             (room - filled, "block free", f"{nbytes(room - filled)} lost")], room,
             f"{percent(filled / room if room else 0)} of {nbytes(room)}")
            for i, (run, (filled, room)) in enumerate(zip(runs, rows, strict=True))]  # fmt: skip
    head = ("group", "filled, bytes", "there, bytes")
    table = Table(head, tuple((name, f"{a:,}", f"{b:,}") for (name, _), (a, b)
                              in zip(runs, rows, strict=True)), 1)  # fmt: skip
    return Chart(title, "one block of each group; for states the blocks of one state",
                 _bars(bars, title), table)  # fmt: skip


def _filling(plan: Plan, index: int) -> tuple[int, int]:
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
    needed = need(plan, length)
    ends = [index for _, index in runs[1:]] + [len(plan.groups)]
    rows = [
        _spent(plan, range(first, end), length) for (_, first), end in zip(runs, ends, strict=True)
    ]
    whole = max((sum(row) for row in rows), default=0)
    title = f"A request of {length:,} tokens takes {nbytes(needed.bytes)}"
    bars = [(_name(plan, run), [(row[0], f"s{i % 5}", f"{nbytes(row[0])} needed"),
             (row[1], "quiet", f"{nbytes(row[1])} rounding"),
             (row[2], "block free", f"{nbytes(row[2])} padding")], whole, nbytes(sum(row)))
            for i, (run, row) in enumerate(zip(runs, rows, strict=True))]  # fmt: skip
    head = ("groups", "needed, bytes", "rounding, bytes", "padding, bytes")
    table = Table(head, tuple((run[0], *(f"{part:,}" for part in row)) for run, row
                              in zip(runs, rows, strict=True)), 1)  # fmt: skip
    return Chart(title, "bytes of all workers; pale: whole blocks beyond the tokens, dashed: padding",
                 _bars(bars, title), table)  # fmt: skip


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
    total = max(1, plan.num_blocks)
    wide = WIDTH - 2
    shapes: list[Shape] = []
    shown = min(stated.requests, _MOST)
    step = each * stated.requests / max(1, shown)
    for number in range(shown):
        x, width = wide * step * number / total, wide * step / total
        shapes.append(Box(1 + x, 2, max(0.5, width - 1), 24, f"s{number % 2 * 2}", "one request"))
    start = wide * each * stated.requests / total
    shapes.append(Box(1 + start, 2, max(0.0, wide - start), 24, "block free", "free"))
    rest = plan.usable - each * stated.requests
    shapes.append(
        Label(0, 44, f"{stated.requests:,} x {each:,} blocks, {rest:,} left, 1 null", "axis")
    )
    title = f"{plural(stated.requests, 'request')} of {plan.settings.max_len:,} tokens run at once"
    head = ("blocks", "per request", "requests", "left", "tokens in all")
    row = (
        f"{plan.num_blocks:,}",
        f"{each:,}",
        f"{stated.requests:,}",
        f"{rest:,}",
        f"{stated.tokens:,}",
    )
    subtitle = f"the pool of {plural(plan.num_blocks, 'block')}"
    if stated.requests > _MOST:
        subtitle += f"; each of {_MOST} boxes stands for {stated.requests / _MOST:.1f} requests"
    return Chart(title, subtitle, Drawing(WIDTH, 50, title, tuple(shapes)), Table(head, (row,)))


def _name(plan: Plan, run: tuple[str, int]) -> str:
    return f"{run[0]}: {sees(plan.groups[run[1]])}"


Bar = tuple[str, list[tuple[int, str, str]], int, str]
"""Name, parts (bytes, style, tip), bytes of the whole width, label at the end."""


def _bars(bars: Sequence[Bar], label: str) -> Drawing:
    shapes: list[Shape] = []
    room = WIDTH - _LEFT - _RIGHT
    for index, (name, parts, whole, end) in enumerate(bars):
        y, x = index * _HEIGHT, float(_LEFT)
        shapes.append(Label(_LEFT - 8, y + 14, fit(name, _LEFT - 8), "axis", "end"))
        for size, style, tip in parts:
            width = room * size / whole if whole else 0.0
            if width > 0.2:
                shapes.append(Box(x, y + 2, width, _BAR, style, tip))
            x += width
        shapes.append(Label(x + 6, y + 14, end))
    shapes.append(Line(((_LEFT, 0), (_LEFT, _HEIGHT * len(bars))), "rule"))
    return Drawing(WIDTH, max(_HEIGHT, _HEIGHT * len(bars)), label, tuple(shapes))
