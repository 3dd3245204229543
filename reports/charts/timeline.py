"""Picture of a whole engine's failure: requests, launches, copies and blocks over steps."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from kvproof.harness.records.timeline import LaunchView, RequestLane, SlotsRead, Timeline
from kvproof.reports.model.timeline import (
    ELSEWHERE,
    Cell,
    Grid,
    Touch,
    answer_of,
    copied,
    expected,
    grid_of,
)
from kvproof.reports.values.svg import Box, Drawing, Label, Line, Shape, Table, fit
from kvproof.reports.values.text import one_line

MOST_STEPS = 60
"""Columns."""

_WIDTH, _LEFT, _ROW = 1060, 170, 22
_WIDEST = 44
_NARROW = 13
"""Pixels of a column below which cells have no text."""
_STYLES = {"P": "heat9", "d": "heat5", "v": "heat7", "w": "heatnone", "p": "heat6", "r": "heat1",
           "s": "heat1"}  # fmt: skip
_WORDS = {"P": "prompt", "d": "decode", "v": "verifies drafts", "w": "waiting", "p": "preempted",
          "r": "running, no work", "s": "another status"}  # fmt: skip
_PAGE, _MOST_PAGES = 206, 20
"""Pixels of a block at the failing read, and blocks drawn."""


def timeline_picture(timeline: Timeline) -> Drawing:
    """Draw the last steps before a failure."""
    return _Picture(grid_of(timeline, MOST_STEPS)).drawing()


def launch_table(timeline: Timeline) -> Table:
    """Return every row of every launch."""
    rows = tuple(
        (str(launch.number), row.request, _step(launch.submitted), _step(launch.executed),
         f"{row.start} to {row.stop - 1}", str(row.drafts or ""), str(row.hit or ""),
         _blocks(row.reads), _blocks(row.writes))
        for launch in timeline.launches for row in launch.rows
    )  # fmt: skip
    head = ("launch", "request", "submitted", "executed", "positions", "drafts", "hit", "reads",
            "writes blocks")  # fmt: skip
    return Table(head, rows, words=len(head))


def _step(number: int) -> str:
    return f"step {number}" if number >= 0 else "queued"


def _blocks(groups: Sequence[Sequence[int]]) -> str:
    return "; ".join(" ".join(map(str, blocks)) for blocks in groups)


class _Picture:
    """Rows from top to bottom; `y` is where the next one begins."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.column = min(_WIDEST, (_WIDTH - _LEFT - 4) / len(grid.steps))
        self.shapes: list[Shape] = []
        self.y = 0.0

    def drawing(self) -> Drawing:
        """Draw all parts."""
        self._axis()
        for lane in self.grid.requests:
            self._lane(lane)
        self._launches()
        self._copies()
        self._touched()
        self._failed_step()
        self._legend()
        self._pages()
        label = f"Requests, launches and blocks until step {self.grid.last}, which failed"
        return Drawing(_WIDTH, self.y, label, tuple(self.shapes))

    def _x(self, step: int) -> float:
        return _LEFT + (step - self.grid.first) * self.column

    def _box(self, first: int, last: int, style: str, tip: str = "", text: str = "") -> None:
        """Draw a box over steps of the current row, with a text if there is room."""
        first, last = max(first, self.grid.first), min(last, self.grid.last)
        x, width = self._x(first), (last - first + 1) * self.column - 1
        self.shapes.append(Box(x, self.y + 2, width, _ROW - 4, style, tip))
        if text and width >= max(_NARROW, 6.4 * len(text)):
            self.shapes.append(Label(x + width / 2, self.y + 15, text, "cell", "middle"))

    def _name(self, text: str, style: str = "") -> None:
        self.shapes.append(Label(0, self.y + 15, fit(one_line(text), _LEFT - 10), style))

    def _heading(self, text: str) -> None:
        self.y += 8
        self.shapes.append(Label(0, self.y + 15, one_line(text), "strong"))
        self.y += _ROW - 2

    def _axis(self) -> None:
        first = self.grid.first
        self._name("steps" if first == 1 else f"steps, from {first} on")
        every = 1 if self.column >= 20 else 5
        for step in self.grid.steps:
            if step % every == 0 or step == self.grid.last:
                at = self._x(step) + self.column / 2
                self.shapes.append(Label(at, self.y + 15, str(step), "axis", "middle"))
        self.y += _ROW - 2
        self._name("operation of the history")
        runs: dict[int, list[int]] = {}
        for step, number in self.grid.operations().items():
            runs.setdefault(number, []).append(step)
        for number, steps in runs.items():
            verb = self.grid.timeline.operations[number - 1][0]
            self._box(steps[0], steps[-1], "block", f"operation {number}: {verb}", str(number))
        self.y += _ROW
        self._heading("requests")

    def _lane(self, lane: RequestLane) -> None:
        tip = f"{lane.request}: {lane.about}; arrived after step {lane.arrived}"
        self._name(lane.request)
        self.shapes.append(Box(0, self.y + 2, _LEFT - 8, _ROW - 4, "hidden", one_line(tip)))
        for step, cell in self.grid.cells(lane).items():
            self._box(
                step,
                step,
                f"heat {_STYLES[cell.letter]}",
                one_line(cell.tip),
                _text(cell, self.column),
            )
        if self.grid.first <= lane.ended <= self.grid.last:
            word = {"aborted": "aborted", "length": "ends"}.get(lane.outcome, lane.outcome)
            at = self._x(lane.ended) + (self.column + 3 if self._has_work(lane) else 3)
            if at < _WIDTH - 50:
                self.shapes.append(Label(at, self.y + 15, fit(one_line(word), 120), "axis"))
        self.y += _ROW

    def _has_work(self, lane: RequestLane) -> bool:
        return lane.ended in self.grid.cells(lane)

    def _launches(self) -> None:
        """Draw a box from submission to execution; only where something is late."""
        if not self.grid.late():
            return
        self._heading("launches")
        launches = self.grid.launches()
        ends = [each.executed if each.executed >= 0 else self.grid.last for each in launches]
        spans = [(each.submitted, end) for each, end in zip(launches, ends, strict=True)]
        for row in _stacked(spans):
            for index in row:
                self._launch(launches[index], *spans[index])
            self.y += _ROW

    def _launch(self, launch: LaunchView, first: int, last: int) -> None:
        names = ", ".join(row.request for row in launch.rows)
        tip = f"launch {launch.number} ({names}): submitted in step {first}, "
        tip += f"executed: {_step(launch.executed)}"
        ran = launch.executed in self.grid.steps
        self._box(first, last, "block", one_line(tip), "" if ran else str(launch.number))
        if ran:
            self._box(last, last, "heat heat5", one_line(tip), str(launch.number))

    def _copies(self) -> None:
        copies = self.grid.transfers()[-12:]
        if copies:
            self._heading("copies")
        for each in copies:
            last = each.ended if each.ended >= 0 else self.grid.last
            self._name(f"{each.number} {each.stream}")
            ended = _step(each.ended) if each.ended >= 0 else "under way"
            tip = f"{each.stream}: {copied(each)}; {ended}"
            self._box(each.submitted, last, "block held", one_line(tip))
            at = self._x(min(last, self.grid.last)) + self.column + 4
            text = fit(one_line(copied(each)), max(60, _WIDTH - at))
            self.shapes.append(Label(min(at, _WIDTH - 260), self.y + 15, text, "axis"))
            self.y += _ROW

    def _touched(self) -> None:
        blocks = self.grid.blocks()
        if blocks:
            self._heading(
                "blocks, in the order of positions" if self.grid.timeline.slots else "blocks"
            )
        for group, block in blocks:
            wrong = self.grid.is_wrong(group, block)
            self._name(
                f"{'✗ ' if wrong else ''}{self.grid.block_name(group, block)}",
                "alarm" if wrong else "",
            )
            for first, last, touches in _runs(self.grid.touches(group, block)):
                self._touch(first, last, touches)
            if wrong:
                reader = self.grid.timeline.slots[0].request
                self._box(
                    self.grid.last,
                    self.grid.last,
                    "block suspect",
                    f"{one_line(reader)} reads wrong content",
                    one_line(reader),
                )
            self.y += _ROW

    def _touch(self, start: int, stop: int, touches: Sequence[Touch]) -> None:
        ordered = sorted(touches, key=lambda touch: not touch.written)
        first = ordered[0]
        style = "heat heat7" if first.written else "heat heat2"
        tip = "; ".join(one_line(touch.tip) for touch in ordered)
        name = "copy" if first.request == ELSEWHERE else one_line(first.request)
        self._box(start, stop, style, tip, name)

    def _failed_step(self) -> None:
        """Frame the failed step, and draw a line at each reset."""
        x = self._x(self.grid.last)
        for step in self.grid.resets():
            at = self._x(step) - 1
            self.shapes.append(Line(((at, _ROW), (at, self.y)), "curve limit"))
            self.shapes.append(Label(at - 3, self.y + 11, "reset", "axis", "end"))
        for at in (x - 0.5, x + self.column - 0.5):
            self.shapes.append(Line(((at, _ROW), (at, self.y)), "failed"))

    def _legend(self) -> None:
        """Explain the letters, the fills and the omissions."""
        self.y += 12
        used = {
            cell.letter for lane in self.grid.requests for cell in self.grid.cells(lane).values()
        }
        words = [f"{letter} {word}" for letter, word in _WORDS.items() if letter in used]
        more = [
            "a dark block is written, a light one is read" if self.grid.blocks() else "",
            "the frame is the step that failed",
        ]
        self.shapes.append(
            Label(_LEFT, self.y + 14, "; ".join(filter(None, [*words, *more])), "axis")
        )
        self.y += _ROW

    def _pages(self) -> None:
        """Draw the blocks of the failing read: the content expected, and the content found."""
        read = self.grid.timeline.slots[:_MOST_PAGES]
        if not read:
            return
        self._heading(f"launch {read[0].launch} of {read[0].request} reads, layer {read[0].layer}")
        per_row = _WIDTH // _PAGE
        for start in range(0, len(read), per_row):
            line = read[start : start + per_row]
            texts = [list(_page_lines(each)) for each in line]
            height = 12 + 15 * max(map(len, texts))
            for index, (each, lines) in enumerate(zip(line, texts, strict=True)):
                self._page(each, lines, index * _PAGE, height)
            self.y += height + 8

    def _page(self, slots: SlotsRead, lines: Sequence[str], x: float, height: float) -> None:
        style, tip = "suspect" if slots.wrong else "held", one_line(answer_of(slots))
        self.shapes.append(Box(x + 2, self.y, _PAGE - 10, height, f"block {style}", tip))
        for place, text in enumerate(lines):
            look = "strong" if place == 0 else "alarm" if slots.wrong and place > 1 else "axis"
            self.shapes.append(Label(x + 10, self.y + 17 + 15 * place, text, look))


def _page_lines(slots: SlotsRead) -> Iterator[str]:
    room = _PAGE - 26
    yield fit(f"{'✗ ' if slots.wrong else ''}block {slots.block}", room)
    yield fit(one_line(f"must hold {expected(slots)}"), room * 1.1)
    found = f"{'holds ' if slots.wrong else ''}{one_line(answer_of(slots))}"
    yield from textwrap.wrap(found, int(room / 7.2), max_lines=5, placeholder="…")


def _text(cell: Cell, width: float) -> str:
    """Return positions if they fit, otherwise the letter."""
    if cell.work is None or cell.letter != "P":
        return cell.letter
    positions = f"{cell.work.start}–{cell.work.stop - 1}"  # noqa: RUF001 - a range
    return positions if width >= 6.4 * len(positions) else cell.letter


def _runs(touches: Mapping[int, list[Touch]]) -> list[tuple[int, int, list[Touch]]]:
    """Join steps in which the same request does the same: first and last step, the touches."""
    runs: list[tuple[int, int, list[Touch]]] = []
    for step, found in sorted(touches.items()):
        if runs and runs[-1][1] == step - 1 and _who(runs[-1][2]) == _who(found):
            runs[-1] = (runs[-1][0], step, [*runs[-1][2], *found])
        else:
            runs.append((step, step, found))
    return runs


def _who(touches: Sequence[Touch]) -> tuple[bool, str]:
    first = min(touches, key=lambda touch: not touch.written)
    return first.written, first.request


def _stacked(spans: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Deal spans out to rows so that none overlap."""
    rows: list[list[int]] = []
    for index, (first, _) in enumerate(spans):
        free = next((row for row in rows if spans[row[-1]][1] < first), None)
        if free is None:
            rows.append(free := [])
        free.append(index)
    return rows
