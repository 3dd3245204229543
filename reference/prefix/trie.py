"""Longest reusable prefix: a path-compressed tree over token buffers (T1-T5, H3, H7).

An edge is a run of whole units: its token bytes and its ids of full attention, in two flat
buffers. Two children of one node differ in their first unit, which is the key between them, so
matching costs one dictionary lookup and one memory comparison per *node*, whatever the cache
holds.

    forest --namespace--> root --first unit--> node --first unit--> node

A request holds the deepest node of its path and with it every node above but the root; `holds`
counts the holders of a node, its own and those of everything below. Nodes without holders wait in
`_idle` in order of release, the deepest of a path first. A holder refreshes the path above it, so
a node is never released before its descendants, and the oldest idle node is always a leaf (T3).

Blocks of windows and chunks, checkpoints and expert rows hang on the same nodes; what manages
them is `attached` and hears of every change of shape.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence

from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.identity import PLAIN, TOKEN_BYTES, Segment
from kvproof.reference.prefix.match import equal_units, longest_match, walk
from kvproof.reference.prefix.node import Attached, Match, Node, Piece, join


class PrefixTrie:
    """Index of cached units, with `width` ids of full attention in each."""

    def __init__(
        self,
        unit: int,
        width: int = 1,
        on_change: Callable[[str, Node, int, int], None] | None = None,
    ) -> None:
        """`on_change(kind, node, first, last)` hears of units stored in or removed from a node."""
        self._stride = unit * TOKEN_BYTES
        self._width = width
        self._on_change = on_change
        self.attached: Sequence[Attached] = ()
        self.clock = 0
        """Counts releases; recency is logical (T3, C7)."""
        self._start()

    def clear(self) -> Ids:
        """Forget everything (H6); returns the ids without holder.

        Paths still held are orphans from then on: `abandon` gives their blocks back.
        """
        orphans = join([node.blocks for node in self._idle])
        self._start()
        return orphans

    def _start(self) -> None:
        self._forest = Node(None, None, bytearray(), array("i"), 0)
        self._idle: OrderedDict[Node, None] = OrderedDict()
        self.num_idle = 0
        """Blocks of nodes that nobody holds: evictable."""

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

    def idle_blocks(self, match: Match) -> int:
        """Count the matched blocks that nobody holds: taking them makes that many unevictable."""
        idle, inside, node = 0, match.inside, match.node
        while node is not None and node.units and not node.holds:
            idle += inside
            node = node.parent
            inside = node.units
        return idle * self._width

    # --- holding ---

    def hold(self, match: Match, root: Hashable) -> Node:
        """Hold a match and everything above it, splitting its last node if it ends inside (B5).

        The caller may insert below the returned node, also if nothing matched.
        """
        node = match.node or self._root(root)
        if match.inside < node.units:
            node = self._split(node, match.inside)
        end = node
        while node.units:
            if not node.holds:
                del self._idle[node]
                self.num_idle -= len(node.blocks)
            node.holds += 1
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
        front.holds, front.stamp = node.holds, node.stamp
        if not front.holds:
            self._idle[front] = None
        for other in self.attached:
            other.split(front, node)
        return front

    def release(self, node: Node) -> None:
        """Drop one hold of a path of the index, ends of chains first (B3)."""
        self.clock = clock = self.clock + 1
        while node.units:
            node.holds = holds = node.holds - 1
            if not holds:
                self._idle[node] = None
                node.stamp = clock
                self.num_idle += len(node.blocks)
            node = node.parent
        if not node.children:
            self._forget_root(node)

    @staticmethod
    def abandon(node: Node) -> Ids:
        """Drop one hold of a path that `clear` has orphaned; returns ids that nobody holds."""
        released = []
        for step in node.path():
            if step.units:
                step.holds -= 1
                if not step.holds:
                    released.append(step.blocks)
        return join(released)

    # --- growing and shrinking ---

    def insert(
        self,
        node: Node,
        tokens: bytes,
        segments: tuple[Segment, ...],
        blocks: Ids,
        first: int,
        last: int,
    ) -> list[Piece]:
        """Index units `first` .. `last` below `node`, which the caller holds (T2).

        `blocks` is the caller's whole table. The caller's hold moves to the node of the last
        piece. Equal units that exist already are kept instead of the new.
        """
        if not node.units:  # a root may have been forgotten since
            node = self._forest.children.setdefault(node.key, node)
        pieces: list[Piece] = []
        stride = self._stride
        for start, stop, marks in segments:
            end = last if last * stride <= stop else stop // stride
            while first < end:
                key: Hashable = tokens[first * stride : (first + 1) * stride]
                if marks and first * stride == start:
                    key = (key, marks)
                child = node.children.get(key)
                if child is None:
                    node = self._append(node, key, tokens, blocks, first, end)
                    pieces.append(Piece(node, first, end))
                    first = end
                    break
                node = self._descend(child, tokens, first, end)
                pieces.append(Piece(node, first, first + node.units, existed=True))
                first += node.units
        return pieces

    def _append(
        self,
        node: Node,
        key: Hashable,
        tokens: bytes,
        blocks: Ids,
        first: int,
        end: int,
    ) -> Node:
        """Put new units behind `node`: into it if nobody else can see its end, else as a child."""
        run = memoryview(tokens)[first * self._stride : end * self._stride]
        ids = blocks[first * self._width : end * self._width]
        grows = node.holds == 1 and node.units and not node.children and type(key) is bytes
        before = node.units if grows else 0
        if grows:
            node.tokens += run
            node.blocks += ids
            node.units += end - first
        else:
            child = Node(node, key, bytearray(run), ids, end - first)
            node.children[key] = child
            node, child.holds = child, 1
        if self._on_change:
            self._on_change("stored", node, before, node.units)
        return node

    def _descend(self, child: Node, tokens: bytes, first: int, end: int) -> Node:
        """Move the caller's hold into an existing child as far as it is equal."""
        size = min(len(child.tokens), (end - first) * self._stride)
        inside = equal_units(child.tokens, tokens, first * self._stride, size, self._stride)
        if inside < child.units:
            child = self._split(child, inside)
        if not child.holds:
            del self._idle[child]
            self.num_idle -= len(child.blocks)
        child.holds += 1
        return child

    def is_idle(self, node: Node) -> bool:
        """Tell whether a node of the index has no holder."""
        return node in self._idle

    def oldest(self) -> Node | None:
        """Return the leaf that was released first, or None."""
        return next(iter(self._idle), None)

    def trim(self, node: Node, units: int) -> Ids:
        """Forget the last `units` of the oldest leaf (B3, T3); returns ids, ends of chains first.

        A node without units leaves with them.
        """
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
            self.num_idle -= ids
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

    def idle_nodes(self) -> list[Node]:
        """Return the nodes without holder, first victim first."""
        return list(self._idle)
