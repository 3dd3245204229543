"""Nodes of the prefix index, and the values that its questions answer with."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from kvproof.reference.core.block_pool import Ids

if TYPE_CHECKING:
    from kvproof.reference.core.checkpoint import Checkpoint
    from kvproof.reference.prefix.partial_blocks import PartialMatch
    from kvproof.reference.prefix.window_blocks import Run


class Node:
    """A run of cached units that follows `parent`; at least one, except for roots."""

    __slots__ = (
        "blocks", "children", "holds", "key", "parent", "runs", "stamp", "start", "states",
        "tokens", "units",
    )  # fmt: skip

    parent: Node
    """Missing only above the forest, where nobody climbs."""
    start: int
    """Units above this node."""
    runs: tuple[Run, ...]
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
        self.holds = self.stamp = 0
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


class Match(Struct, frozen=True, gc=False):
    """Longest cached prefix of a request; a value, good until the index changes (T1)."""

    node: Node | None
    """Deepest node reached; None if not even the namespace is known."""
    inside: int
    """Matched units of that node, all of them or fewer."""
    units: int
    """Matched units in all."""
    checkpoint: Checkpoint | None = None
    """What the state is restored from, of models that have one."""
    junction: int = 0
    """Tokens that would be a hit but for the missing state (S8); 0: none."""
    tail: PartialMatch | None = None
    """What goes on behind the last unit, inside of one (T6)."""

    @property
    def beyond(self) -> int:
        """Tokens that are hit behind the last unit."""
        return self.tail.tokens if self.tail else 0

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


class Piece(Struct, frozen=True, gc=False):
    """Units [first, last) of an inserted request lie in `node`."""

    node: Node
    first: int
    last: int
    existed: bool = False
    """They were there already, and were the whole of the node (T2)."""


class Attached(Protocol):
    """What else hangs on the units of nodes, told when nodes change."""

    def split(self, front: Node, back: Node) -> None:
        """Tell that `front` has taken over the first units of `back`."""

    def trim(self, node: Node, units: int) -> Ids:
        """Let go of the last `units` units of a node without holders; returns freed ids."""


def join(parts: list[Ids]) -> Ids:
    """Return ids in position order; parts are given deepest first."""
    if len(parts) == 1:
        return parts[0][:]
    ids = array("i")
    for part in reversed(parts):
        ids += part
    return ids
