"""Blocks of windows and chunks: held at the end of a path, left early at its front (X1, X4).

A request sees only the last positions of a window or chunk class, so its blocks of the class are
a range that ends where its path ends, and whose first unit moves forward as it computes. A node
ends where a path ends or forks, hence in every node

    [ absent | resident, evictable | held ]
              lo                         held      units

the resident units are a suffix, and the held units a suffix of them. Two numbers describe it,
for any number of requests. Idle units leave from the front of the run whose last holder left
first; together with the node's other blocks they leave from the end (`PrefixTrie.trim`).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from functools import partial

from kvproof.reference.core.attention_groups import BlockClass
from kvproof.reference.core.block_pool import NULL_BLOCK, Ids
from kvproof.reference.prefix.trie import InsertedRange, Node, PrefixTrie, WindowRun


class WindowTable:
    """Blocks of one class for one request; ids are null below unit `first`."""

    __slots__ = ("blocks", "first", "ids")

    def __init__(self, blocks: WindowBlocks, first: int, ids: Ids) -> None:
        self.blocks = blocks
        self.first = first
        self.ids = ids

    def mask(self, before: int) -> None:
        """Put the null block where it has seen nothing since `first` was `before` (X4)."""
        width, first = self.blocks.width, self.first
        self.ids[before * width : first * width] = _NULL * ((first - before) * width)


class WindowBlocks:
    """All blocks of one class, on the nodes of a trie and in the tables of requests."""

    def __init__(self, rule: BlockClass, index: int, trie: PrefixTrie) -> None:
        self.rule = rule
        self.width = rule.width
        self._index = index
        self._trie = trie
        self._idle: OrderedDict[WindowRun, None] = OrderedDict()
        self.num_evictable = 0
        """Blocks in nodes that no request sees: evictable."""

    # --- questions ---

    def clamp(self, node: Node, tokens: int) -> int:
        """Return the longest valid length <= `tokens`, whole units, on the path (X1, X2)."""
        rule, unit = self.rule, self.rule.unit
        units = tokens // unit
        if node.start <= rule.first_unit(tokens) < units and not node.runs[self._index].lo:
            return tokens  # all that is seen lies in one node, which has no hole
        return rule.longest_valid(units, partial(self._last_absent, node)) * unit

    def _last_absent(self, node: Node, first: int, units: int) -> tuple[int, int] | None:
        """Find the last absent unit of [first, units), and where its node begins."""
        while units > first:
            start = node.start
            if start < units:
                lo = node.runs[self._index].lo
                if lo and start + lo > first:
                    return start, min(start + lo, units) - 1
                units = start
            node = node.parent
        return None

    def evictable_blocks(self, node: Node, units: int) -> int:
        """Count idle blocks that a hit of `units` would hold."""
        first, idle = self.rule.first_unit(units * self.rule.unit), 0
        while units > first:
            while node.start >= units:
                node = node.parent
            run = node.runs[self._index]
            idle += max(0, min(node.start + run.held, units) - max(first, node.start))
            units = node.start
        return idle * self.width

    def evictable_ids(self) -> list[list[int]]:
        """Return the idle blocks of each run, first victim first."""
        width = self.width
        return [run.ids[run.lo * width : run.held * width].tolist() for run in self._idle]

    # --- requests ---

    def lock(self, node: Node) -> WindowTable:
        """Hold the blocks that a request with a hit up to the end of `node` still sees (B5)."""
        width, units = self.width, node.start + node.units
        first = self.rule.first_unit(units * self.rule.unit)
        ids = _NO_IDS
        while units > first:
            run, units = node.runs[self._index], node.start
            start = first - units if first > units else 0
            self._lock_run(run, start)
            own = run.ids[start * width :]
            ids = own + ids if ids else own
            node = node.parent
        return WindowTable(self, first, _NULL * (first * width) + ids)

    def index(self, table: WindowTable, pieces: list[InsertedRange]) -> Ids:
        """Hang a request's new units on nodes; returns the ids that it no longer needs (T2)."""
        duplicates = _NO_IDS
        width = self.width
        for piece in pieces:
            node, first, last = piece.node, piece.first, piece.last
            if len(node.runs) == self._index:  # a node of this request alone
                run = WindowRun(node, table.ids[first * width : last * width])
                run.starts[0] = 1
                node.runs = (*node.runs, run)
                continue
            run = node.runs[self._index]
            if piece.existed:
                duplicates = duplicates + self._share(table, run, first, last)
                self._lock_run(run, 0)
            else:
                known = len(run.ids) // width
                run.ids += table.ids[first * width : last * width]
                if known == 0 or table.first == first:
                    run.starts[known] = 1  # a growing run has one holder
        return duplicates

    def _share(self, table: WindowTable, run: WindowRun, first: int, last: int) -> Ids:
        width, lo = self.width, run.lo
        middle, end = (first + lo) * width, last * width
        run.ids[: lo * width] = table.ids[first * width : middle]
        own = table.ids[middle:end]
        table.ids[middle:end] = run.ids[lo * width :]
        self.num_evictable += lo * width
        run.lo = 0
        return own

    def unlock(self, table: WindowTable, node: Node, indexed: int, first: int) -> Ids:
        """Release the units before `first`, `indexed` of them on the path; returns ids (B2, X4)."""
        before, end = table.first, indexed
        table.first = first
        while end > before:
            start = node.start
            if start < first:
                old = before - start if before > start else 0
                self._move_start(node.runs[self._index], old, first - start, end - start)
            node, end = node.parent, start
        if first <= indexed:
            return _NO_IDS
        return table.ids[max(before, indexed) * self.width : first * self.width]

    def _move_start(self, run: WindowRun, old: int, new: int, units: int) -> None:
        """Move the start of one holder forward; a run with more idle units is evicted last."""
        starts, before = run.starts, run.held
        left = starts.pop(old) - 1
        if new < units:
            starts[new] = starts.get(new, 0) + 1
        if left:
            starts[old] = left
            return
        run.held = held = min(starts) if starts else units
        if held > before:
            self.num_evictable += (held - before) * self.width
            run.stamp = self._trie.clock
            self._idle[run] = None
            if before > run.lo:
                self._idle.move_to_end(run)

    def evict_orphaned(self, node: Node) -> Ids:
        """Make idle units on the path of `node` absent, which a reset has orphaned (H6)."""
        freed = array("i")
        while node.units:
            run = node.runs[self._index]
            if run in self._idle:
                self.num_evictable -= (run.held - run.lo) * self.width
                del self._idle[run]
                freed += self._cut(run, run.held)
            node = node.parent
        return freed

    def _lock_run(self, run: WindowRun, start: int) -> None:
        starts, held = run.starts, run.held
        starts[start] = starts[start] + 1 if start in starts else 1
        if start < held:
            self.num_evictable -= (held - start) * self.width
            run.held = start
            if run.lo >= start:
                self._idle.pop(run, None)

    # --- eviction and reset ---

    def refill(self, run: WindowRun, lo: int, ids: Ids) -> None:
        """Make units from `lo` on resident again, and the run the most recent (C8)."""
        run.ids[lo * self.width : run.lo * self.width] = ids
        self.num_evictable += len(ids)
        run.lo, run.stamp = lo, self._trie.clock
        if lo < run.held:
            self._idle[run] = None
            self._idle.move_to_end(run)

    def oldest(self) -> WindowRun | None:
        """Return the run whose last holder left first, or None."""
        return next(iter(self._idle), None)

    def evict(self, count: int) -> Ids:
        """Forget about `count` blocks from the front of the oldest run (B3)."""
        return self.evict_front(next(iter(self._idle)), -(-count // self.width))

    def evict_front(self, run: WindowRun, units: int) -> Ids:
        """Make up to `units` evictable units at the front of a run absent; returns their ids."""
        units = min(units, run.held - run.lo)
        self.num_evictable -= units * self.width
        freed = self._cut(run, run.lo + units)
        if run.lo == run.held:
            del self._idle[run]
        return freed

    def _cut(self, run: WindowRun, lo: int) -> Ids:
        width = self.width
        span = slice(run.lo * width, lo * width)
        freed = run.ids[span]
        run.ids[span] = array("i", bytes(4 * len(freed)))
        run.lo = lo
        return freed

    def clear(self) -> Ids:
        """Forget the evictable blocks (H6); held ones are freed when they are released."""
        freed = array("i")
        for run in self._idle:
            freed += self._cut(run, run.held)
        self._idle.clear()
        self.num_evictable = 0
        return freed

    # --- changes of nodes ---

    def split(self, front: Node, back: Node) -> None:
        """Cut the run of `back` in two: a holder of the front also holds the back."""
        units, ids = front.units, front.units * self.width
        old = back.runs[self._index]
        new = WindowRun(front, old.ids[:ids])
        front.runs = (*front.runs, new)
        del old.ids[:ids]
        new.lo, old.lo = min(old.lo, units), max(0, old.lo - units)
        new.starts = {start: n for start, n in old.starts.items() if start < units}
        later: dict[int, int] = {}
        for start, n in old.starts.items():
            later[max(0, start - units)] = later.get(max(0, start - units), 0) + n
        old.starts = later
        new.held, old.held = min(old.held, units), max(0, old.held - units)
        new.stamp = old.stamp
        if new.lo < new.held:
            self._idle[new] = None
        if old.lo >= old.held:
            self._idle.pop(old, None)

    def trim(self, node: Node, units: int) -> Ids:
        """Remove the last units of an unlocked node; returns ids, ends of chains first."""
        run, left = node.runs[self._index], node.units - units
        freed = run.ids[max(left, run.lo) * self.width :][::-1]
        del run.ids[left * self.width :]
        self.num_evictable -= len(freed)
        run.held, run.lo = left, min(run.lo, left)
        if run.lo == left:
            self._idle.pop(run, None)
        return freed


_NO_IDS: Ids = array("i")
_NULL: Ids = array("i", [NULL_BLOCK])
