"""Loading of window and chunk blocks: holes of runs are filled from the end (X1).

The resident units of a run are a suffix of it (`local_blocks`), and so are the units that a hit
needs of any node up to its end. Hence a run needs no more than a lower `lo`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from kvproof.reference.core.block_pool import NULL_BLOCK, Ids
from kvproof.reference.prefix.trie import Node, WindowRun
from kvproof.reference.prefix.window_blocks import WindowBlocks
from kvproof.reference.tiers.object_key import local


class Seen(NamedTuple):
    """Units of one class that a hit needs: [first, stop) of a path (X1, X3)."""

    number: int
    own: WindowBlocks
    first: int
    stop: int

    def runs(self, node: Node | None) -> Iterator[tuple[WindowRun, int, int]]:
        """Yield (run, first, stop) inside each node of the path that ends at `node`."""
        while node is not None and node.start + node.units > self.first and node.units:
            begin, end = max(self.first - node.start, 0), min(self.stop - node.start, node.units)
            if begin < end:
                yield node.runs[self.number], begin, end
            node = node.parent

    def evictable_blocks(self, node: Node | None) -> int:
        """Count resident blocks without a holder: the hit takes them (B5)."""
        parts = self.runs(node)
        idle = sum(max(0, min(end, run.held) - max(begin, run.lo)) for run, begin, end in parts)
        return idle * self.own.width

    def make_recent(self, node: Node) -> None:
        """Let everything else be evicted before (B3)."""
        for run, _, _ in self.runs(node):
            self.own.refill(run, run.lo, _NO_IDS)

    def fill(self, node: Node, ids: Mapping[tuple[str, int], Ids]) -> None:
        """Make loaded blocks resident; `ids` are by part and unit of the path."""
        part = local(self.number)
        for run, begin, _ in self.runs(node):
            came = array("i")
            for unit in range(begin, run.lo):
                came += ids[part, run.node.start + unit]
            self.own.refill(run, min(begin, run.lo), came)


def add_empty_runs(classes: Iterable[WindowBlocks], node: Node) -> None:
    """Give a new node runs of which nothing is resident."""
    for own in classes:
        run = WindowRun(node, array("i", [NULL_BLOCK]) * (node.units * own.width))
        run.lo = run.held = node.units
        node.runs = (*node.runs, run)


_NO_IDS: Ids = array("i")
