"""Nodes of the prefix index, and the values that its questions answer with."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from kvproof.reference.block_pool import Ids


class Node:
    """A run of cached blocks that follows `parent`; at least one, except for roots."""

    __slots__ = ("blocks", "children", "holds", "key", "parent", "tokens")

    def __init__(self, parent: Node | None, key: Hashable, tokens: bytearray, blocks: Ids) -> None:
        self.parent = parent
        self.key = key
        self.tokens = tokens
        self.blocks = blocks
        self.children: dict[Hashable, Node] = {}
        self.holds = 0

    def path(self) -> Iterator[Node]:
        """Yield this node and its ancestors, the forest excluded."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def table(self) -> Ids:
        """Return the block ids from the root to the end of this node, in position order."""
        return join([*self.path()])


class Match(NamedTuple):
    """Longest cached prefix of a request; a value, good until the index changes (T1)."""

    node: Node | None
    """Deepest node reached; None if not even the namespace is known."""
    inside: int
    """Matched blocks of that node, all of them or fewer."""
    blocks: int
    """Matched blocks in all."""


class Inserted(NamedTuple):
    """The node that now ends at the inserted blocks, and blocks that were there already (T2)."""

    node: Node
    shared: list[tuple[int, Ids]]
    """(position of the first block, ids that replace the caller's from there on)."""


def join(nodes: list[Node]) -> Ids:
    """Return the block ids of nodes given deepest first, in position order."""
    ids = array("i")
    for node in reversed(nodes):
        ids += node.blocks
    return ids
