"""Loads that fail in part: which blocks do not arrive, and which rows cannot know it yet.

Between a failed load and the scheduler's knowledge of it, launches compute from blocks that
did not arrive. That is no finding: their answers must be thrown away, and the slots that they wrote
must not be read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kvproof.harness.contract.whole_engine import Row
from kvproof.harness.model.fingerprints import mix
from kvproof.harness.whole_engine.device_requests import Work

SPOILED = mix(0x10AD)
"""Mark of content that was computed from a lost block."""
LOST = mix(0x1057)
"""Fingerprint in every slot of a block that did not arrive."""


@dataclass
class Losses:
    """The losses on one engine."""

    block_size: int
    pattern: int = 0
    """Blocks lost of copies submitted now: 0 none, 1 the first one, 2 the last one, 3 every
    other one, 4 all."""
    blocks: set[int] = field(default_factory=set)
    """Blocks with a failed load that the scheduler does not know of."""
    requests: set[str] = field(default_factory=set)
    """Requests that ever had a failed load; they may end with an error."""
    returned: dict[str, list[int]] = field(default_factory=dict)
    """Request that went on after its failed load, not admitted anew -> the blocks of that load."""
    _lost: dict[str, list[int]] = field(default_factory=dict)
    _doomed: dict[str, set[int]] = field(default_factory=dict)
    _again: set[str] = field(default_factory=set)

    @property
    def in_a_step(self) -> list[str]:
        """Requests of which a load had failed when the next launch came."""
        return sorted(self._lost)

    def pick(self, count: int) -> list[int]:
        """Return which of `count` blocks do not arrive."""
        chosen = ([], [0], [count - 1], range(0, count, 2), range(count))[self.pattern]
        return list(chosen) if count else []

    def lose(self, request: str, blocks: Collection[int]) -> None:
        """Note that blocks of a load do not arrive; launches may read them until `report`."""
        self.blocks.update(blocks)
        self.requests.add(request)
        self._lost[request] = sorted(blocks)

    def report(self, blocks: Collection[int]) -> None:
        """Note that the scheduler was given these failures: later launches have no excuse."""
        self.blocks.difference_update(blocks)
        names = [name for name, lost in self._doomed.items() if not lost.isdisjoint(blocks)]
        self._again.update(names)
        for name in names:
            del self._doomed[name]

    def doomed(self, request: str) -> bool:
        """Tell whether a request computes from blocks that did not arrive."""
        return request in self._doomed

    def look(self, rows: Iterable[Row]) -> tuple[list[Row], dict[str, int]]:
        """Return the rows, and of those that cannot be right the first position that is lost.

        A row that follows a reported failure may begin again further back.
        """
        found = []
        for row in rows:
            again = row.request in self._again
            self._again.discard(row.request)
            if row.fresh:
                self.returned.pop(row.request, None)
            elif again:
                self.returned[row.request] = self._lost.get(row.request, [])
            found.append(replace(row, fresh=True) if again else row)
            self.blocks.difference_update(self._owned(row, row.start, row.start + len(row.tokens)))
        firsts: dict[str, int] = {}
        for row in found if self.blocks else ():
            before = self._owned(row, 0, row.start)
            lost = [at for at, block in enumerate(before) if block in self.blocks]
            if lost:
                firsts[row.request] = lost[0] * self.block_size
                self.requests.add(row.request)
                self._doomed.setdefault(row.request, set()).update(before[at] for at in lost)
        return found, firsts

    def _owned(self, row: Row, start: int, end: int) -> Sequence[int]:
        """Return the blocks that begin in positions start to end."""
        size = self.block_size
        return list(row.groups[0].owned[-(-start // size) : -(-end // size)])


def spoiled(work: Work, first: int) -> Work:
    """Return a row's work as it is when position `first` holds something else."""
    prints = work.prints.copy()
    prints[first:] ^= np.uint64(SPOILED)
    return replace(work, prints=prints)
