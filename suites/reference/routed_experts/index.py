"""A small prefix index without blocks: nodes with runs of units, which grow and are split."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(eq=False)
class Node:
    """Units of text after `parent`; `number` names it in messages."""

    number: int
    parent: Node | None
    units: list[str]
    children: list[Node] = field(default_factory=list)

    def path(self) -> list[Node]:
        """Return the nodes from the root's child to this one."""
        above = self.parent.path() if self.parent else []
        return [*above, self] if self.parent else []


class Index:
    """Calls `on_split(node, front, count)` when the first `count` units move to `front`."""

    def __init__(self, on_split: Callable[[Node, Node, int], None]) -> None:
        self._on_split = on_split
        self._count = 0
        self.root = Node(0, None, [])

    def match(self, units: list[str]) -> tuple[Node, int, int]:
        """Return the deepest node reached, how many of its units match, and how many in all."""
        node, inside, done = self.root, 0, 0
        while inside == len(node.units):
            rest = units[done:]
            child = next((c for c in node.children if rest and c.units[0] == rest[0]), None)
            if child is None:
                break
            pairs = zip(child.units, rest, strict=False)
            inside = next((i for i, (a, b) in enumerate(pairs) if a != b), None) or min(
                len(child.units), len(rest)
            )
            node, done = child, done + inside
        return node, inside, done

    def insert(self, units: list[str]) -> Node:
        """Add `units` to the index; returns the node that ends with them."""
        node, inside, done = self.match(units)
        if inside < len(node.units):
            node = self._split(node, inside)
        rest = units[done:]
        if rest and node.parent and not node.children:
            node.units += rest
        elif rest:
            node = self._attach(node, rest)
        return node

    def _split(self, node: Node, count: int) -> Node:
        assert node.parent is not None
        front = self._attach(node.parent, node.units[:count])
        node.parent.children.remove(node)
        node.parent, node.units = front, node.units[count:]
        front.children.append(node)
        self._on_split(node, front, count)
        return front

    def _attach(self, parent: Node, units: list[str]) -> Node:
        self._count += 1
        node = Node(self._count, parent, units)
        parent.children.append(node)
        return node

    def leaves(self) -> list[Node]:
        """Return nodes without children, in order of age."""
        return sorted((n for n in self.nodes() if not n.children), key=lambda node: node.number)

    def nodes(self) -> Iterator[Node]:
        """Yield every node but the root."""
        stack = [*self.root.children]
        while stack:
            node = stack.pop()
            yield node
            stack += node.children

    def trim(self, leaf: Node) -> None:
        """Take the last unit of a leaf."""
        leaf.units.pop()
        if not leaf.units:
            assert leaf.parent is not None
            leaf.parent.children.remove(leaf)
