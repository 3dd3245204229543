"""Content of the rows, and a shared pool for them."""

from __future__ import annotations

from array import array
from collections import deque
from typing import TypeAlias

from kvproof.harness.oracle.violation import SHADOW
from kvproof.reference.states.batch_copies import Run
from kvproof.suites.framework.coverage import Coverage

Ids: TypeAlias = list[int]


class Memory:
    """Row -> text. A state of several rows has a part in each."""

    def __init__(self, coverage: Coverage, width: int) -> None:
        self._coverage = coverage
        self._width = width
        self._held: dict[int, str] = {}

    def write(self, ids: Ids, text: str) -> None:
        """Store the state after `text`."""
        self._held.update((row, f"{part}:{text}") for part, row in enumerate(ids))

    def copy(self, runs: list[Run]) -> None:
        for run in runs:
            for i in range(run.size):
                self._held[run.destination + i] = self._held.get(run.source + i, "")

    def check(self, prop: str, ids: Ids, text: str, owner: str) -> None:
        """Check that rows hold the state after `text`."""
        held = [self._held.get(row) for row in ids]
        right = [f"{part}:{text}" for part in range(self._width)]
        self._coverage.equal(prop, held, right, f"rows {ids} of {owner} hold", oracle=SHADOW)


class Pool:
    """Blocks that states share with another user; handed out in a scattered order."""

    def __init__(self, count: int) -> None:
        self.free = deque(range(1, count + 1))
        self.held: list[int] = []

    def take(self, count: int) -> array[int] | None:
        """Hand out blocks from both ends in turn."""
        if count > len(self.free):
            return None
        return array("i", [self.free.pop() if i % 2 else self.free.popleft() for i in range(count)])

    def hold(self, count: int) -> None:
        """Let the other user hold `count` blocks in all, as far as they are free."""
        while len(self.held) < count and self.free:
            self.held.append(self.free.pop())
        while len(self.held) > count:
            self.free.append(self.held.pop())
