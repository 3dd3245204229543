"""Objects of evicted nodes of the index, and their keys (H1, G10, R1)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from kvproof.reference.cache.eviction import EvictionPolicy
from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.checkpoint import Checkpoint
from kvproof.reference.core.identity import TOKEN_BYTES, Namespace, Span
from kvproof.reference.prefix.trie import Node, WindowRun
from kvproof.reference.tiers import object_key
from kvproof.reference.tiers.object_key import ObjectKeys


class Leaving(NamedTuple):
    """One object that is about to lose its place: blocks or a row, or bytes of the host."""

    key: bytes
    part: str
    ids: Ids
    data: bytes = b""


class NodeKeys:
    """Links of the units of nodes, computed on first use (H5); see `Attached`."""

    def __init__(self, unit: int) -> None:
        self._stride = unit * TOKEN_BYTES
        self._links: dict[Node, list[bytes]] = {}

    def of(self, keys: ObjectKeys, node: Node) -> list[bytes]:
        """Return the links of a node's units."""
        path = []
        step = node
        while step.units and len(self._links.get(step, ())) < step.units:
            path.append(step)
            assert step.parent is not None
            step = step.parent
        for below in reversed(path):
            self._extend(keys, below)
        return self._links[node]

    def _extend(self, keys: ObjectKeys, node: Node) -> None:
        above, links = node.parent, self._links.setdefault(node, [])
        assert above is not None
        for unit in range(len(links), node.units):
            if links:
                before = links[-1]
            else:
                before = self._links[above][above.units - 1] if above.units else _root(keys, above)
            tokens = bytes(node.tokens[unit * self._stride : (unit + 1) * self._stride])
            links.append(keys.link(before, tokens, () if unit else _marks(node)))

    def split(self, front: Node, back: Node) -> None:
        """Divide the links of `back` (see `Attached`)."""
        links = self._links.pop(back, None)
        if links:
            self._links[front], self._links[back] = links[: front.units], links[front.units :]

    def trim(self, node: Node, units: int) -> Ids:
        """Forget the links of the last units; there are no ids to free."""
        left = node.units - units
        if left:
            del self._links.get(node, _NONE)[left:]
        else:
            self._links.pop(node, None)
        return _NO_IDS

    def clear(self) -> None:
        """Forget everything (H6)."""
        self._links.clear()


def _root(keys: ObjectKeys, root: Node) -> bytes:
    assert isinstance(root.key, Namespace)
    return keys.root(root.key)


def _marks(node: Node) -> tuple[Span, ...]:
    return node.key[1] if isinstance(node.key, tuple) else ()


class Inventory:
    """Names the objects of units, runs and checkpoints (G10: null blocks are nothing)."""

    def __init__(self, eviction: EvictionPolicy, nodes: NodeKeys, keys: ObjectKeys) -> None:
        self._eviction, self._nodes, self._keys = eviction, nodes, keys
        self._width = eviction.full_width

    def units(self, leaf: Node, left: int) -> Iterator[Leaving]:
        """Yield the objects on the units of a leaf from number `left` on."""
        if not leaf.units:
            return
        links, width = self._nodes.of(self._keys, leaf), self._width
        for unit in range(left, leaf.units) if width else ():
            ids = leaf.blocks[unit * width : (unit + 1) * width]
            yield self._named(links[unit], object_key.FULL, ids)
        for index, run in enumerate(leaf.runs):
            yield from self._run(index, run, max(left, run.lo), leaf.units)
        for mark, checkpoint in (leaf.states or {}).items():
            if mark > left:
                yield self._named(links[mark - 1], object_key.STATE, checkpoint.ids)
        if self._eviction.experts is not None:
            yield from self._experts(leaf, links, left)

    def _named(self, link: bytes, part: str, ids: Ids) -> Leaving:
        return Leaving(self._keys.key(link, part), part, ids)

    def run(self, index: int, run: WindowRun, count: int) -> Iterator[Leaving]:
        """Yield the first `count` resident blocks of a run, in whole units."""
        width = self._eviction.windows[index].width
        units = min(-(-count // width), run.held - run.lo)
        yield from self._run(index, run, run.lo, run.lo + units)

    def _run(self, index: int, run: WindowRun, first: int, last: int) -> Iterator[Leaving]:
        width, part = self._eviction.windows[index].width, object_key.local(index)
        links = self._nodes.of(self._keys, run.node)
        for unit in range(first, last):
            yield self._named(links[unit], part, run.ids[unit * width : (unit + 1) * width])

    def state(self, checkpoint: Checkpoint) -> Iterator[Leaving]:
        """Yield a checkpoint, which still hangs on its node."""
        node = checkpoint.owner
        assert isinstance(node, Node)
        unit = checkpoint.tokens // self._eviction.unit - node.start - 1
        link = self._nodes.of(self._keys, node)[unit]
        yield self._named(link, object_key.STATE, checkpoint.ids)

    def _experts(self, leaf: Node, links: list[bytes], left: int) -> Iterator[Leaving]:
        """Yield the rows of units that have them: known rows never change."""
        assert self._eviction.experts is not None
        store, unit = self._eviction.experts.store, self._eviction.unit
        rows = store.form.empty(leaf.units * unit)
        known = store.read([(leaf, leaf.units)], rows)
        for number in range(left, leaf.units):
            if known[number * unit]:
                data = rows[number * unit : (number + 1) * unit].tobytes()
                key = self._keys.key(links[number], object_key.EXPERTS)
                yield Leaving(key, object_key.EXPERTS, _NO_IDS, data)


_NO_IDS: Ids = array("i")
_NONE: list[bytes] = []
