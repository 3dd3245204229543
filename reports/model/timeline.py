"""Content of a timeline, step by step: the common part of its picture and its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvproof.harness.records.timeline import (
    LaunchRow,
    LaunchView,
    RequestLane,
    SlotsRead,
    Timeline,
    TransferView,
)
from kvproof.reports.values.text import plural

MOST_BLOCKS = 14
"""Rows of blocks."""
MOST_REQUESTS = 40
ELSEWHERE = ""
"""The request of a block's row where a copy touches the block."""


class Cell(NamedTuple):
    """One request in one step."""

    letter: str
    """P a chunk of a prompt, d decode, v with drafts, w waiting, p preempted, r running without
    work, s another status."""
    tip: str
    work: LaunchRow | None = None


class Touch(NamedTuple):
    """One block in one step."""

    request: str
    written: bool
    tip: str


@dataclass(frozen=True)
class Grid:
    """A timeline cut to its last steps."""

    timeline: Timeline
    first: int
    last: int

    @property
    def steps(self) -> range:
        """The steps that are shown."""
        return range(self.first, self.last + 1)

    @property
    def cut(self) -> str:
        """Which steps are left out, in words."""
        return f"steps before {self.first} are left out" if self.first > 1 else ""

    @property
    def requests(self) -> list[RequestLane]:
        """Requests that were there in these steps; the last ones if there are many."""
        lanes = [each for each in self.timeline.requests if not 0 <= each.ended < self.first]
        return lanes[-MOST_REQUESTS:]

    def cells(self, lane: RequestLane) -> dict[int, Cell]:
        """Return step -> cell of a request."""
        found = {
            step: Cell(_letter(span.status), f"step {step}: {span.status}")
            for span in lane.spans
            for step in range(max(span.first, self.first), min(span.last, self.last) + 1)
        }
        for launch in self.timeline.launches:
            if launch.submitted in self.steps:
                for row in launch.rows:
                    if row.request == lane.request:
                        found[launch.submitted] = _worked(launch, row)
        return found

    def launches(self) -> list[LaunchView]:
        """Launches that were under way in these steps."""
        return [
            each
            for each in self.timeline.launches
            if self.under_way(each.submitted, each.executed) and each.rows
        ]

    def transfers(self) -> list[TransferView]:
        """Copies that were under way in these steps."""
        return [
            each for each in self.timeline.transfers if self.under_way(each.submitted, each.ended)
        ]

    def under_way(self, submitted: int, ended: int) -> bool:
        """Whether something between two steps can be seen."""
        return submitted <= self.last and (ended < 0 or ended >= self.first)

    def late(self) -> bool:
        """Whether a launch was executed in a later step than it was submitted in."""
        return any(each.executed != each.submitted for each in self.launches())

    def blocks(self) -> list[tuple[int, int]]:
        """Return (group, block) of the rows of blocks: those of the failing read come first."""
        read = [(each.group, each.block) for each in self.timeline.slots]
        rows = [row for launch in reversed(self.launches()) for row in launch.rows]
        more = [
            (group, block)
            for row in rows
            for group, blocks in enumerate(row.reads)
            for block in blocks
        ]
        wrong = [(each.group, each.block) for each in self.timeline.slots if each.wrong]
        chosen = list(dict.fromkeys([*wrong, *(read or more)]))[:MOST_BLOCKS]
        return [each for each in dict.fromkeys(read) if each in chosen] or sorted(chosen)

    def touches(self, group: int, block: int) -> dict[int, list[Touch]]:
        """Return step -> the accesses to a block when the device made them."""
        found: dict[int, list[Touch]] = {}
        for launch in self.launches():
            for row in launch.rows:
                touch = _touch(launch, row, group, block)
                if touch and launch.executed in self.steps:
                    found.setdefault(launch.executed, []).append(touch)
        for each in self.timeline.transfers:
            if each.ended in self.steps and block in (*each.reads, *each.writes):
                written = block in each.writes
                tip = f"copy {each.number} ({each.stream}) {'writes' if written else 'reads'} it"
                found.setdefault(each.ended, []).append(Touch(ELSEWHERE, written, tip))
        return found

    def is_wrong(self, group: int, block: int) -> bool:
        """Whether the failing read found other content in a block."""
        return any(
            each.wrong and (each.group, each.block) == (group, block)
            for each in self.timeline.slots
        )

    def operations(self) -> dict[int, int]:
        """Return step -> number of the operation that runs it."""
        return {
            step: number
            for number, (_, before, last) in enumerate(self.timeline.operations, 1)
            for step in range(max(before + 1, self.first), min(last, self.last) + 1)
        }

    def resets(self) -> list[int]:
        """Return the steps right after a reset."""
        return sorted({step + 1 for step in self.timeline.resets} & {*self.steps})

    def block_name(self, group: int, block: int) -> str:
        """Name a block, with its group if there are several."""
        groups = self.timeline.groups
        kind = f", {groups[group]}" if len(groups) > 1 and 0 <= group < len(groups) else ""
        return f"block {block}{kind}"


def grid_of(timeline: Timeline, most: int) -> Grid:
    """Return the last steps of a timeline, `most` of them."""
    last = max(timeline.failed, 1)
    return Grid(timeline, min(last, max(timeline.since, last - most + 1, 1)), last)


def expected(slots: SlotsRead) -> str:
    """Expected content of a block."""
    return f"{slots.first} to {slots.last} of {slots.request}"


def answer_of(slots: SlotsRead) -> str:
    """Actual content of a block, in words."""
    if not slots.wrong:
        return "as expected"
    return f"{slots.found or 'something else'}; {plural(slots.wrong, 'slot')} wrong"


def copied(transfer: TransferView) -> str:
    """Return the blocks of a copy in words."""
    kinds = (("reads", transfer.reads), ("writes", transfer.writes))
    return ", ".join(f"{verb} blocks {_ids(blocks)}" for verb, blocks in kinds if blocks)


def _ids(blocks: Sequence[int]) -> str:
    return " ".join(map(str, blocks[:12])) + (" ..." if len(blocks) > 12 else "")


def _letter(status: str) -> str:
    if status.startswith("waiting"):
        return "w"
    return {"running": "r", "preempted": "p"}.get(status, "s")


def _worked(launch: LaunchView, row: LaunchRow) -> Cell:
    letter = "v" if row.drafts else "d" if row.samples and row.stop - row.start == 1 else "P"
    drafts = f", {row.drafts} of them drafts" if row.drafts else ""
    hit = f", {row.hit} tokens hit" if row.hit else ""
    ran = f"executed in step {launch.executed}" if launch.executed >= 0 else "still queued"
    return Cell(
        letter,
        f"step {launch.submitted}, launch {launch.number}: {row.request} computes positions "
        f"{row.start} to {row.stop - 1}{drafts}{hit}; {ran}; blocks "
        + "; ".join(_ids(blocks) for blocks in row.reads),
        row,
    )


def _touch(launch: LaunchView, row: LaunchRow, group: int, block: int) -> Touch | None:
    written = group < len(row.writes) and block in row.writes[group]
    if not written and not (group < len(row.reads) and block in row.reads[group]):
        return None
    verb = "writes" if written else "reads"
    tip = f"step {launch.executed}, launch {launch.number}: {row.request} {verb} block {block}"
    return Touch(row.request, written, tip)
