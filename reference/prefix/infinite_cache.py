"""Everything computed in an epoch, token by token: a prefix index without eviction (V3).

It exists only while hits are explained. It also records after which tokens a state was to be saved,
and whether there was room for it.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.identity import Namespace, Segment
from kvproof.reference.prefix.trie import Node, PrefixTrie


class KnownPrefix(NamedTuple):
    """The longest prefix that was ever computed for others to use."""

    node: Node | None
    tokens: int


class InfiniteCacheIndex:
    """One node per fork of all histories; memory grows with every new token."""

    def __init__(self) -> None:
        self._trie = PrefixTrie(1, 0)
        self._trie.attached = [self]
        self._saves: dict[Node, dict[int, bool]] = {}
        """Node -> tokens of it -> whether the state after them was saved."""

    def longest(
        self, namespace: Namespace, tokens: bytes, segments: tuple[Segment, ...], limit: int
    ) -> KnownPrefix:
        """Return the longest known prefix of at most `limit` tokens; segments of unit 1 (V3)."""
        match = self._trie.match(namespace, tokens, segments, limit)
        return KnownPrefix(match.node, match.units)

    def store(
        self, namespace: Namespace, tokens: bytes, segments: tuple[Segment, ...], stop: int
    ) -> Node:
        """Remember the first `stop` tokens; returns the node that ends there (V3)."""
        trie = self._trie
        match = trie.match(namespace, tokens, segments, stop)
        node = trie.lock(match, namespace)
        if match.units < stop:
            node = trie.insert(node, tokens, segments, _NO_IDS, match.units, stop)[-1].node
        trie.unlock(node)
        return node

    def mark(self, node: Node, *, saved: bool) -> None:
        """Remember that the state at the end of `node` was saved, or only wanted (S5, V3)."""
        saves = self._saves.setdefault(node, {})
        saves[node.units] = saved or saves.get(node.units, False)

    def clamp(self, node: Node | None, tokens: int, *, saved: bool) -> int:
        """Return the longest length <= `tokens` after which a state was saved, or wanted (V3)."""
        while node is not None:
            marks = self._saves.get(node, _NO_MARKS)
            inside = tokens - node.start
            fit = [mark for mark, was in marks.items() if mark <= inside and (was or not saved)]
            if fit:
                return node.start + max(fit)
            node = node.parent
        return 0

    # --- changes of nodes (see `Attached`) ---

    def split(self, front: Node, back: Node) -> None:
        """Divide the marks of `back`."""
        for units, saved in self._saves.pop(back, _NO_MARKS).items():
            node, inside = (front, units) if units <= front.units else (back, units - front.units)
            self._saves.setdefault(node, {})[inside] = saved

    def trim(self, node: Node, units: int) -> Ids:
        """Nothing ever leaves."""
        raise AssertionError(f"{units} units leave {node}, but a ghost index forgets nothing")


_NO_IDS: Ids = array("i")
_NO_MARKS: dict[int, bool] = {}
