"""Longest reusable prefix: a path-compressed tree over token buffers (T1-T5, H3, H7).

An edge is a run of full blocks: its token bytes and its block ids, in two flat buffers. Two
children of one node differ in their first block, which is the key between them, so matching
costs one dictionary lookup and one memory comparison per *node*, whatever the cache holds.

    forest --(group, namespace)--> root --first block--> node --first block--> node

A request holds the deepest node of its path and with it every node above; `holds` counts the
holders of a node, its own and those of everything below. Nodes without holders wait in `_idle`
in order of release, the deepest of a path first. A holder refreshes the whole path above it, so
a node is never released before its descendants, and the oldest idle node is always a leaf (T3).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator

import numpy as np

from kvproof.reference.block_pool import Ids
from kvproof.reference.identity import TOKEN_BYTES, Segment, Span
from kvproof.reference.trie_node import Inserted, Match, Node, join


class PrefixTrie:
    """Index of cached blocks. Cached-only blocks are evicted from the end of the oldest leaf."""

    def __init__(
        self,
        block_size: int,
        on_change: Callable[[str, Node, int, int], None] | None = None,
    ) -> None:
        """`on_change(kind, node, first, last)` hears of blocks stored in or removed from a node."""
        self._stride = block_size * TOKEN_BYTES
        self._on_change = on_change
        self._start()

    def clear(self) -> Ids:
        """Forget everything (H6); returns the blocks without holder.

        Paths still held are orphans from then on: `release` gives their blocks back.
        """
        orphans = join(list(self._idle))
        self._start()
        return orphans

    def _start(self) -> None:
        self._forest = Node(None, None, bytearray(), array("i"))
        self._idle: OrderedDict[Node, None] = OrderedDict()
        self.num_idle = 0
        """Cached-only blocks: evictable, because nobody holds them."""
        self.num_cached = 0
        """All blocks in the index, held ones included."""

    # --- questions: nothing here changes the index (T1) ---

    def match(
        self, root: Hashable, tokens: bytes, segments: tuple[Segment, ...], limit: int
    ) -> Match:
        """Find the longest cached prefix of at most `limit` blocks. O(nodes of the path)."""
        node = self._forest.children.get(root)
        if node is None:
            return Match(None, 0, 0)
        inside = position = 0
        end = limit * self._stride
        for start, stop, marks in segments:
            if position < start or inside < len(node.blocks):
                break
            node, inside, position = self._walk(node, tokens, position, min(stop, end), marks)
        return Match(node, inside, position // self._stride)

    def _walk(
        self, node: Node, tokens: bytes, position: int, stop: int, marks: tuple[Span, ...]
    ) -> tuple[Node, int, int]:
        """Follow one segment from the end of `node`; returns (node, blocks inside it, position)."""
        stride, inside = self._stride, len(node.blocks)
        while position + stride <= stop:
            first = tokens[position : position + stride]
            child = node.children.get((first, marks) if marks else first)
            if child is None:
                break
            node, marks, edge = child, (), child.tokens
            size = len(edge)
            if position + size > stop or not tokens.startswith(edge, position):
                inside = self._common(edge, tokens, position, min(size, stop - position))
                position += inside * stride
                break
            inside = len(node.blocks)
            position += size
        return node, inside, position

    def _common(self, edge: bytearray, tokens: bytes | bytearray, position: int, size: int) -> int:
        """Count leading full blocks in which `edge` equals `tokens` from byte `position` on."""
        count = size // TOKEN_BYTES
        here = np.frombuffer(edge, np.int32, count)
        there = np.frombuffer(tokens, np.int32, count, position)
        differs = here != there
        first = int(differs.argmax())
        equal = first if differs[first] else count
        return equal * TOKEN_BYTES // self._stride

    def idle_blocks(self, match: Match) -> int:
        """Count the matched blocks that nobody holds: taking them makes that many unevictable."""
        idle, inside, node = 0, match.inside, match.node
        while node is not None and node.parent is not None and not node.holds:
            idle += inside
            node = node.parent
            inside = len(node.blocks)
        return idle

    # --- holding ---

    def hold(self, match: Match, root: Hashable) -> Node:
        """Hold a match and everything above it, splitting its last node if it ends inside (B5).

        The caller may insert below the returned node, also if nothing matched.
        """
        node = match.node or self._root(root)
        if match.inside < len(node.blocks):
            node = self._split(node, match.inside)
        self._hold_path(node)
        return node

    def _root(self, root: Hashable) -> Node:
        forest = self._forest
        if root not in forest.children:
            forest.children[root] = Node(forest, root, bytearray(), array("i"))
        return forest.children[root]

    def _hold_path(self, node: Node) -> None:
        forest = self._forest
        while node is not forest:
            if not node.holds:
                self._leave_idle(node)
            node.holds += 1
            assert node.parent is not None
            node = node.parent

    def _leave_idle(self, node: Node) -> None:
        """A root that was only just made is not in the order, and has no blocks to count."""
        self._idle.pop(node, None)
        self.num_idle -= len(node.blocks)

    def _split(self, node: Node, count: int) -> Node:
        """Move the first `count` blocks of `node` into a new parent; `node` keeps its recency."""
        size = count * self._stride
        assert node.parent is not None
        front = Node(node.parent, node.key, node.tokens[:size], node.blocks[:count])
        del node.tokens[:size], node.blocks[:count]
        node.parent.children[node.key] = front
        node.parent, node.key = front, bytes(node.tokens[: self._stride])
        front.children[node.key] = node
        front.holds = node.holds
        if not front.holds:
            self._idle[front] = None
        return front

    def release(self, node: Node) -> Ids:
        """Drop one hold of a path. Blocks that a reset has orphaned come back for the pool."""
        released = []
        while node.parent is not None:
            node.holds -= 1
            if not node.holds:
                released.append(node)
            node = node.parent
        if node is self._forest:
            for freed in released:
                self._enter_idle(freed)
            return _NO_IDS
        return join(released)

    def _enter_idle(self, node: Node) -> None:
        if node.blocks or node.children:
            self._idle[node] = None
            self.num_idle += len(node.blocks)
        else:
            self._unlink(node)

    # --- growing and shrinking ---

    def insert(
        self,
        node: Node,
        tokens: bytes | bytearray,
        segments: tuple[Segment, ...],
        blocks: Ids,
        first: int,
    ) -> Inserted:
        """Index blocks `first` .. len(blocks) below `node`, which the caller holds.

        `blocks` is the caller's whole table up to the last full block. The caller's hold moves
        to the returned node. Equal blocks that exist already are kept instead of the new (T2).
        """
        shared: list[tuple[int, Ids]] = []
        stride, last = self._stride, len(blocks)
        for start, stop, marks in segments:
            end = min(stop // stride, last)
            while first < end:
                key: Hashable = bytes(tokens[first * stride : (first + 1) * stride])
                if marks and first * stride == start:
                    key = (key, marks)
                child = node.children.get(key)
                if child is None:
                    node = self._append(node, key, tokens, blocks, first, end)
                    first = end
                    break
                node, ids = self._descend(child, tokens, first, end)
                shared.append((first, ids))
                first += len(ids)
        return Inserted(node, shared)

    def _append(
        self,
        node: Node,
        key: Hashable,
        tokens: bytes | bytearray,
        blocks: Ids,
        first: int,
        end: int,
    ) -> Node:
        """Put new blocks behind `node`: into it if nobody else can see its end, else as a child."""
        run = memoryview(tokens)[first * self._stride : end * self._stride]
        grows = node.holds == 1 and node.blocks and not node.children and type(key) is bytes
        before = len(node.blocks) if grows else 0
        if grows:
            node.tokens += run
            node.blocks += blocks[first:end]
        else:
            child = Node(node, key, bytearray(run), blocks[first:end])
            node.children[key] = child
            node, child.holds = child, 1
        self.num_cached += end - first
        if self._on_change:
            self._on_change("stored", node, before, len(node.blocks))
        return node

    def _descend(
        self, child: Node, tokens: bytes | bytearray, first: int, end: int
    ) -> tuple[Node, Ids]:
        """Move the caller's hold into an existing child as far as it is equal."""
        size = min(len(child.tokens), (end - first) * self._stride)
        inside = self._common(child.tokens, tokens, first * self._stride, size)
        if inside < len(child.blocks):
            child = self._split(child, inside)
        if not child.holds:
            self._leave_idle(child)
        child.holds += 1
        return child, child.blocks[:]

    def evict(self, count: int) -> Ids:
        """Forget up to `count` cached-only blocks, least recent first, ends of chains first (B3).

        O(1) per block, amortised. Returns the ids in the order in which they should be reused.
        """
        victims = array("i")
        while count and self._idle:
            node = next(iter(self._idle))
            take = min(count, len(node.blocks))
            if take:
                victims.extend(node.blocks[: -take - 1 : -1])
                self._trim(node, take)
                count -= take
            if not node.blocks:
                del self._idle[node]
                self._unlink(node)
        return victims

    def _trim(self, node: Node, take: int) -> None:
        if self._on_change:
            self._on_change("removed", node, len(node.blocks) - take, len(node.blocks))
        del node.blocks[-take:], node.tokens[-take * self._stride :]
        self.num_idle -= take
        self.num_cached -= take

    def _unlink(self, node: Node) -> None:
        assert not node.children, "a node with children left the index before them (T3)"
        assert node.parent is not None
        del node.parent.children[node.key]

    # --- invariants, recomputed from scratch ---

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


_NO_IDS: Ids = array("i")
