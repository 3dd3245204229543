"""A timeline as lines of text, one character for each step."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.harness.records.timeline import RequestLane, Timeline
from kvproof.reports.model.timeline import (
    ELSEWHERE,
    Grid,
    answer_of,
    copied,
    expected,
    grid_of,
)
from kvproof.reports.values.text import one_line

MOST_STEPS = 50
"""Columns, so that a line fits into 80."""

_NAME = 18
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MOST_COPIES, _MOST_TEXT = 8, 200
_MEANING = {
    "P": "prompt", "d": "decode", "v": "verifies drafts", "w": "waiting", "r": "running, no work",
    "p": "preempted", "s": "another status", "F": "finished", "A": "aborted",
}  # fmt: skip


def timeline_lines(timeline: Timeline) -> list[str]:
    """Return the lines: requests, launches in flight, copies, blocks, the failing read."""
    grid = grid_of(timeline, MOST_STEPS)
    requests = list(_requests(grid))
    stop = _NAME + 1 + len(grid.steps)
    used = {letter for line in requests for letter in line[_NAME + 1 : stop]}
    legend = ", ".join(f"{letter} {word}" for letter, word in _MEANING.items() if letter in used)
    return [
        *_head(grid),
        *requests,
        *_queue(grid),
        *_copies(grid),
        *_blocks(grid),
        *filter(None, [legend, grid.cut]),
        *(f"{lane.request}: {one_line(lane.about)}"[:_MOST_TEXT] for lane in grid.requests),
        *(f"copy {each.number} {copied(each)}" for each in grid.transfers()[-_MOST_COPIES:]),
        *_slots(timeline),
    ]


def _line(name: str, cells: str, end: str = "") -> str:
    short = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
    return f"{short:<{_NAME}} {cells} {end}".rstrip()


def _head(grid: Grid) -> Iterator[str]:
    tens = "".join(f"{step:<10}" if not step % 10 else "" for step in grid.steps)
    lead = " " * (-grid.first % 10)
    yield _line("step", (lead + tens)[: len(grid.steps)] if tens else str(grid.first))
    yield _line("", "".join(str(step % 10) for step in grid.steps))
    numbers = grid.operations()
    marks = (str(numbers[step] % 10) if step in numbers else " " for step in grid.steps)
    yield _line("operation", "".join(marks))
    if grid.resets():
        marks = ("R" if step in grid.resets() else " " for step in grid.steps)
        yield _line("after a reset", "".join(marks))


def _requests(grid: Grid) -> Iterator[str]:
    for place, lane in enumerate(grid.requests):
        cells = grid.cells(lane)
        marks = "".join(cells[step].letter if step in cells else _gone(lane, step)
                        for step in grid.steps)  # fmt: skip
        yield _line(f"{_LETTERS[place % 26]} {lane.request}", marks)


def _gone(lane: RequestLane, step: int) -> str:
    if lane.ended == step:
        return "A" if lane.outcome == "aborted" else "F"
    return "." if lane.ended < 0 and lane.arrived < step else " "


def _queue(grid: Grid) -> Iterator[str]:
    """Show how many launches were queued at the end of each step."""
    if grid.late():
        launches = grid.launches()
        counts = [
            sum(
                each.submitted <= step and (each.executed < 0 or each.executed > step)
                for each in launches
            )
            for step in grid.steps
        ]
        yield _line("launches queued", "".join(str(min(count, 9)) for count in counts))


def _copies(grid: Grid) -> Iterator[str]:
    copies = grid.transfers()
    for each in copies[-_MOST_COPIES:]:
        stop = each.ended if each.ended >= 0 else grid.last
        marks = "".join("=" if each.submitted <= step <= stop else " " for step in grid.steps)
        marks = marks if each.ended >= 0 else f"{marks[:-1]}>"
        yield _line(f"{each.number} {one_line(each.stream)}", marks)
    if len(copies) > _MOST_COPIES:
        yield f"{len(copies) - _MOST_COPIES} earlier copies are in the HTML report"


def _blocks(grid: Grid) -> Iterator[str]:
    letters = {lane.request: _LETTERS[i % 26] for i, lane in enumerate(grid.requests)}
    letters[ELSEWHERE] = "+"
    for group, block in grid.blocks():
        touches = grid.touches(group, block)
        marks, wrong = "", grid.is_wrong(group, block)
        for step in grid.steps:
            by = sorted(touches.get(step, ()), key=lambda touch: not touch.written)
            mark = letters.get(by[0].request, "?") if by else " "
            failed = wrong and step == grid.last
            marks += "!" if failed else mark.upper() if by and by[0].written else mark
        yield _line(grid.block_name(group, block), marks, "<- wrong content" if wrong else "")
    if grid.blocks():
        yield "blocks: the request's letter, capital if written; + a copy; ! the read"


def _slots(timeline: Timeline) -> Iterator[str]:
    read = timeline.slots
    if read:
        yield f"launch {read[0].launch} of {read[0].request} reads, layer {read[0].layer}:"
    for each in read[:24]:
        mark = "x" if each.wrong else " "
        found = answer_of(each)[:_MOST_TEXT]
        yield f"{mark} block {each.block}, must hold {expected(each)}: {found}"
