"""Longest reusable prefix: a path-compressed tree over token buffers (T1-T5, H3, H7).

An edge is a run of whole units: its token bytes and its ids of full attention, in two flat
buffers. Two children of one node differ in their first unit, which is the key between them, so
matching costs one dictionary lookup and one memory comparison per *node*, for
any size of the cache.

    forest --namespace--> root --first unit--> node --first unit--> node

A request locks the deepest node of its path and with it every node above but the root; `locks`
counts the holders of a node, its own and those of everything below. Nodes without locks wait in
`_idle` in order of release, the deepest of a path first. A holder refreshes the path above it, so
a node is never unlocked before its descendants, and the oldest idle node is always a leaf (T3).

Blocks of windows and chunks, checkpoints and expert rows lie on the same nodes; their managers
are `attached` and notified of every split and trim.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.checkpoint import Checkpoint
from kvproof.reference.core.identity import PLAIN, TOKEN_BYTES, Segment, Span, equal_units
from kvproof.reference.prefix.partial_blocks import PartialMatch


class Node:
    """A run of cached units that follows `parent`; at least one, except for roots."""

    __slots__ = (
        "blocks", "children", "key", "locks", "parent", "runs", "stamp", "start", "states",
        "tokens", "units",
    )  # fmt: skip

    parent: Node
    """Missing only above the forest, which no path reaches."""
    start: int
    """Units above this node."""
    runs: tuple[WindowRun, ...]
    """Blocks of windows and chunks, one run for each class."""
    states: dict[int, Checkpoint] | None
    """Checkpoints by the units of this node that they follow."""
    stamp: int
    """When the last holder left."""

    def __init__(
        self, parent: Node | None, key: Hashable, tokens: bytearray, blocks: Ids, units: int
    ) -> None:
        self.parent = parent  # type: ignore[assignment]  # see there
        self.key = key
        self.tokens = tokens
        self.blocks = blocks
        self.units = units
        self.start = parent.start + parent.units if parent else 0
        self.children: dict[Hashable, Node] = {}
        self.locks = self.stamp = 0
        self.runs = ()
        self.states = None

    def path(self) -> Iterator[Node]:
        """Yield this node and its ancestors, the forest excluded."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def table(self) -> Ids:
        """Return the ids of full attention from the root to the end of this node."""
        if not self.start:
            return self.blocks[:]
        parts, node = [], self
        while node.units:
            parts.append(node.blocks)
            node = node.parent
        return join(parts)


class WindowRun:
    """Blocks of one class in one node; ids are null below unit `lo`."""

    __slots__ = ("held", "ids", "lo", "node", "stamp", "starts")

    def __init__(self, node: Node, ids: Ids) -> None:
        self.node = node
        self.ids = ids
        self.lo = self.held = self.stamp = 0
        self.starts: dict[int, int] = {}


class Match(Struct, frozen=True, gc=False):
    """Longest cached prefix of a request; a value, good until the index changes (T1)."""

    node: Node | None
    """Deepest node reached; None if not even the namespace is known."""
    inside: int
    """Matched units of that node, all of them or fewer."""
    units: int
    checkpoint: Checkpoint | None = None
    """The state to restore, of models that have one."""
    divergence: int = 0
    """Tokens that would be a hit but for the missing state (S8); 0: none."""
    partial: PartialMatch | None = None
    """Match inside of the next unit, after the last full one (T6)."""

    @property
    def beyond(self) -> int:
        """Tokens of the hit after the last unit."""
        return self.partial.tokens if self.partial else 0

    def tokens(self, unit: int) -> int:
        """Return how many tokens are hit."""
        return self.units * unit + self.beyond

    def shortened(self, units: int) -> Match:
        """Return the same path cut off after `units` units."""
        node = self.node
        if node is None or units == self.units:
            return self
        while node.start >= units and node.units:
            node = node.parent
        return Match(node, units - node.start, units)


class InsertedRange(Struct, frozen=True, gc=False):
    """Units [first, last) of an inserted request lie in `node` (T2)."""

    node: Node
    first: int
    last: int
    existed: bool = False
    """They were there already, and were the whole of the node (T2)."""


class Attached(Protocol):
    """Manages other content of nodes; notified when nodes change."""

    def split(self, front: Node, back: Node) -> None:
        """`front` has taken over the first units of `back`."""

    def trim(self, node: Node, units: int) -> Ids:
        """Free the last `units` units of a node without holders; returns their ids."""


def join(parts: list[Ids]) -> Ids:
    """Return ids in position order; parts are given deepest first."""
    if len(parts) == 1:
        return parts[0][:]
    ids = array("i")
    for part in reversed(parts):
        ids += part
    return ids


def longest_match(
    node: Node, tokens: bytes, segments: tuple[Segment, ...], limit: int, stride: int
) -> Match:
    """Return the longest prefix below the root `node`, up to `limit` units of `stride` bytes."""
    inside = position = 0
    end = limit * stride
    for start, stop, marks in segments:
        if position < start or inside < node.units:
            break
        node, inside, position = walk(node, tokens, position, min(stop, end), marks, stride)
    return Match(node, inside, position // stride)


def walk(
    node: Node, tokens: bytes, position: int, stop: int, marks: tuple[Span, ...], stride: int
) -> tuple[Node, int, int]:
    """Follow one segment from `node`, O(1) per node (T1, H3); returns (node, units, position)."""
    inside = node.units
    while position + stride <= stop:
        first = tokens[position : position + stride]
        child = node.children.get((first, marks) if marks else first)
        if child is None:
            break
        node, marks, edge = child, (), child.tokens
        size = len(edge)
        if position + size > stop or not tokens.startswith(edge, position):
            inside = equal_units(edge, tokens, position, min(size, stop - position), stride)
            position += inside * stride
            break
        inside = node.units
        position += size
    return node, inside, position


class PrefixTrie:
    """Index of cached units, with `width` ids of full attention in each."""

    def __init__(
        self,
        unit: int,
        width: int = 1,
        on_change: Callable[[str, Node, int, int], None] | None = None,
    ) -> None:
        """`on_change(kind, node, first, last)` is called for units stored in or removed."""
        self._stride = unit * TOKEN_BYTES
        self._width = width
        self._on_change = on_change
        self.attached: Sequence[Attached] = ()
        self.clock = 0
        """Counts releases; recency is logical (T3, C7)."""
        self._start()

    def clear(self) -> Ids:
        """Forget everything (H6); returns unlocked ids, `unlock_orphaned` returns the others."""
        orphans = join([node.blocks for node in self._idle])
        self._start()
        return orphans

    def _start(self) -> None:
        self._forest = Node(None, None, bytearray(), array("i"), 0)
        self._idle: OrderedDict[Node, None] = OrderedDict()
        self.num_evictable = 0

    # --- questions: nothing here changes the index (T1) ---

    def match(
        self, root: Hashable, tokens: bytes, segments: tuple[Segment, ...], limit: int
    ) -> Match:
        """Find the longest cached prefix, up to `limit` units. O(nodes of the path) (T1, T5)."""
        node = self._forest.children.get(root)
        if node is None:
            return Match(None, 0, 0)
        stride = self._stride
        if segments is not PLAIN:
            return longest_match(node, tokens, segments, limit, stride)
        node, inside, position = walk(node, tokens, 0, limit * stride, (), stride)
        return Match(node, inside, position // stride)

    def evictable_blocks(self, match: Match) -> int:
        """Count the matched blocks without a lock: locking them makes them unevictable."""
        idle, inside, node = 0, match.inside, match.node
        while node is not None and node.units and not node.locks:
            idle += inside
            node = node.parent
            inside = node.units
        return idle * self._width

    # --- locking ---

    def lock(self, match: Match, root: Hashable) -> Node:
        """Lock a match and everything above it, splitting its last node if it ends inside (B5).

        The caller may insert below the returned node, also if nothing matched.
        """
        node = match.node or self._root(root)
        if match.inside < node.units:
            node = self._split(node, match.inside)
        end = node
        while node.units:
            if not node.locks:
                del self._idle[node]
                self.num_evictable -= len(node.blocks)
            node.locks += 1
            node = node.parent
        return end

    def _root(self, root: Hashable) -> Node:
        forest = self._forest
        if root not in forest.children:
            forest.children[root] = Node(forest, root, bytearray(), array("i"), 0)
        return forest.children[root]

    def _split(self, node: Node, units: int) -> Node:
        """Move the first `units` of `node` into a new parent; `node` keeps its recency."""
        size, ids = units * self._stride, units * self._width
        front = Node(node.parent, node.key, node.tokens[:size], node.blocks[:ids], units)
        del node.tokens[:size], node.blocks[:ids]
        node.units -= units
        node.start += units
        node.parent.children[node.key] = front
        node.parent, node.key = front, bytes(node.tokens[: self._stride])
        front.children[node.key] = node
        front.locks, front.stamp = node.locks, node.stamp
        if not front.locks:
            self._idle[front] = None
        for other in self.attached:
            other.split(front, node)
        return front

    def unlock(self, node: Node) -> None:
        """Drop one lock of a path of the index, ends of chains first (B3)."""
        self.clock = clock = self.clock + 1
        while node.units:
            node.locks = locks = node.locks - 1
            if not locks:
                self._idle[node] = None
                node.stamp = clock
                self.num_evictable += len(node.blocks)
            node = node.parent
        if not node.children:
            self._forget_root(node)

    @staticmethod
    def unlock_orphaned(node: Node) -> Ids:
        """Drop one lock of a path that `clear` has orphaned; returns the unlocked ids."""
        released = []
        for step in node.path():
            if step.units:
                step.locks -= 1
                if not step.locks:
                    released.append(step.blocks)
        return join(released)

    # --- growing and shrinking ---

    def insert(
        self,
        node: Node,
        tokens: bytes | bytearray,
        segments: tuple[Segment, ...],
        blocks: Ids,
        first: int,
        last: int,
    ) -> list[InsertedRange]:
        """Index units `first` .. `last` below `node`, which the caller holds (T2).

        `blocks` is the caller's whole table. The caller's hold moves to the node of the last
        piece. Equal units that exist already are kept instead of the new.
        """
        if not node.units:  # a root may have been forgotten since
            node = self._forest.children.setdefault(node.key, node)
        pieces: list[InsertedRange] = []
        stride = self._stride
        for start, stop, marks in segments:
            end = last if last * stride <= stop else stop // stride
            while first < end:
                key: Hashable = bytes(tokens[first * stride : (first + 1) * stride])
                if marks and first * stride == start:
                    key = (key, marks)
                child = node.children.get(key)
                if child is None:
                    node = self._append(node, key, tokens, blocks, first, end)
                    pieces.append(InsertedRange(node, first, end))
                    first = end
                    break
                node = self._descend(child, tokens, first, end)
                pieces.append(InsertedRange(node, first, first + node.units, existed=True))
                first += node.units
        return pieces

    def _append(
        self,
        node: Node,
        key: Hashable,
        tokens: bytes | bytearray,
        blocks: Ids,
        first: int,
        end: int,
    ) -> Node:
        """Append new units after `node`: in it if its end is private, else in a child."""
        run = memoryview(tokens)[first * self._stride : end * self._stride]
        ids = blocks[first * self._width : end * self._width]
        grows = node.locks == 1 and node.units and not node.children and type(key) is bytes
        before = node.units if grows else 0
        if grows:
            node.tokens += run
            node.blocks += ids
            node.units += end - first
        else:
            child = Node(node, key, bytearray(run), ids, end - first)
            node.children[key] = child
            node, child.locks = child, 1
        if self._on_change:
            self._on_change("stored", node, before, node.units)
        return node

    def _descend(self, child: Node, tokens: bytes | bytearray, first: int, end: int) -> Node:
        """Move the caller's hold into an existing child as far as it is equal."""
        size = min(len(child.tokens), (end - first) * self._stride)
        inside = equal_units(child.tokens, tokens, first * self._stride, size, self._stride)
        if inside < child.units:
            child = self._split(child, inside)
        if not child.locks:
            del self._idle[child]
            self.num_evictable -= len(child.blocks)
        child.locks += 1
        return child

    def is_evictable(self, node: Node) -> bool:
        """Return whether a node of the index has no lock."""
        return node in self._idle

    def oldest(self) -> Node | None:
        """Return the leaf that was released first, or None."""
        return next(iter(self._idle), None)

    def trim(self, node: Node, units: int) -> Ids:
        """Forget the last `units` of the oldest leaf (B3, T3); returns ids, chain ends first."""
        victims = array("i")
        if units:
            if self._on_change:
                self._on_change("removed", node, node.units - units, node.units)
            ids = units * self._width
            if ids:
                victims = node.blocks[: -ids - 1 : -1]
                del node.blocks[-ids:]
            for other in self.attached:
                victims += other.trim(node, units)
            del node.tokens[-units * self._stride :]
            node.units -= units
            self.num_evictable -= ids
        if not node.units:
            del self._idle[node]
            self._unlink(node)
        return victims

    def _unlink(self, node: Node) -> None:
        assert not node.children, "a node with children left the index before them (T3)"
        above = node.parent
        del above.children[node.key]
        if not above.units and not above.children:
            self._forget_root(above)

    def _forget_root(self, root: Node) -> None:
        """Keep no namespace that nothing is cached for (T4)."""
        roots = self._forest.children
        if roots.get(root.key) is root:
            del roots[root.key]

    # --- for invariants that are recomputed from scratch ---

    def nodes(self) -> Iterator[Node]:
        """Yield every node of the index, parents before children, roots included."""
        stack = list(self._forest.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def evictable_nodes(self) -> list[Node]:
        """Return the nodes without holder, first victim first."""
        return list(self._idle)
