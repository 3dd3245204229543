"""Trees of drafts: tokens that may follow the last known one, with the node that each one follows.

A tree has the right tokens up to a number, and wrong ones at drawn places, so that the right path
is seldom the first one. Node 0 is the last known token itself.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from kvproof.harness.model.chain import FIRST_TOKEN, VOCABULARY


class DraftTree(NamedTuple):
    """Drafts of one request."""

    tokens: tuple[int, ...]
    """Token of each node after the first."""
    parents: tuple[int, ...]
    """The node that each of them follows, which comes earlier."""

    def has(self, drafts: Sequence[int]) -> bool:
        """Tell whether drafts are a path from node 0 on."""
        at, children = 0, self._children()
        for token in drafts:
            if (at, token) not in children:
                return False
            at = children[at, token]
        return True

    def _children(self) -> dict[tuple[int, int], int]:
        pairs = zip(self.parents, self.tokens)  # noqa: B905 - equal by make
        return {pair: node for node, pair in enumerate(pairs, 1)}


def paths(parents: Sequence[int]) -> list[list[int]]:
    """Return the nodes from node 0 to each leaf; `parents`: of all nodes, -1 of node 0."""
    inner, found = {*parents}, []
    for leaf in (node for node in range(len(parents)) if node not in inner):
        path = [leaf]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        found.append(path[::-1])
    return found


def draw(ahead: Sequence[int], right: int, *, nodes: int, chain: bool, seed: int) -> DraftTree:
    """Draw a tree of so many nodes after the first: `right` tokens of those `ahead`.

    `chain`: each node follows the one before it.
    """
    chance, right = random.Random(seed), min(right, nodes)  # noqa: S311 - reproducible, not secret
    tokens, parents, good, depths = list[int](), list[int](), [0], [0]
    while len(tokens) < nodes:
        left, node = nodes - len(tokens), len(tokens) + 1
        if len(good) <= right and (chain or left <= right - len(good) + 1 or chance.random() < 0.5):
            parent, token = good[-1], ahead[len(good) - 1]
            good.append(node)
        else:
            parent = node - 1 if chain else chance.randrange(node)
            token = _wrong(ahead[depths[parent]], parents.count(parent))
        tokens.append(token)
        parents.append(parent)
        depths.append(depths[parent] + 1)
    return DraftTree(tuple(tokens), tuple(parents))


def _wrong(right: int, number: int) -> int:
    """Return the n-th token that is not the right one."""
    return FIRST_TOKEN + (right - FIRST_TOKEN + 1 + number) % (VOCABULARY - FIRST_TOKEN)
