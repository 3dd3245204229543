"""Checkpoints on the nodes of the index: which states a path can be resumed from (S1, S7)."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from kvproof.reference.block_pool import Ids
from kvproof.reference.checkpoints import READY, Checkpoint
from kvproof.reference.state_cache import StateCache
from kvproof.reference.trie_node import Node


class Mark(NamedTuple):
    """Place of a checkpoint: behind the first `units` units of a node."""

    node: Node
    units: int


class StateMarks:
    """Keeps nodes and `StateCache` agreed: a checkpoint is on a node as long as it is there."""

    def __init__(self, states: StateCache, unit: int) -> None:
        self._states = states
        self._unit = unit

    def find(self, node: Node, tokens: int) -> Checkpoint | None:
        """Return the checkpoint after exactly `tokens` tokens on the path of `node`."""
        units = tokens // self._unit
        while node.start >= units and node.units:
            assert node.parent is not None
            node = node.parent
        return node.states.get(units - node.start) if node.states else None

    def floor(self, node: Node, tokens: int) -> int:
        """Return the longest length <= `tokens` with a checkpoint on the path of `node` (S1)."""
        units = tokens // self._unit
        while node.units:
            if node.states:
                inside = units - node.start
                best = max((mark for mark in node.states if mark <= inside), default=0)
                if best:
                    return (node.start + best) * self._unit
            assert node.parent is not None
            node = node.parent
        return 0

    def hang(self, node: Node, checkpoint: Checkpoint) -> None:
        """Publish a reserved checkpoint at the end of `node`, unless an equal one is there (S2).

        The step that saved it has ended, so its producer needs no pin.
        """
        if node.states is None:
            node.states = {}
        if node.units in node.states:
            self._states.discard(checkpoint)
            return
        node.states[node.units] = checkpoint
        self._states.publish(checkpoint, Mark(node, node.units), saved=True)

    @staticmethod
    def unhook(checkpoint: Checkpoint) -> Node:
        """Take an evicted checkpoint off its node, which is returned."""
        assert isinstance(checkpoint.owner, Mark)
        node, units = checkpoint.owner
        assert node.states is not None
        del node.states[units]
        return node

    def created(self, node: Node) -> None:
        """A new node has no checkpoints."""

    def split(self, front: Node, back: Node) -> None:
        """Divide the checkpoints of `back` (see `Attached`)."""
        marks, back.states = back.states, None
        for units, checkpoint in (marks or {}).items():
            node, inside = (front, units) if units <= front.units else (back, units - front.units)
            node.states = node.states or {}
            node.states[inside] = checkpoint
            checkpoint.owner = Mark(node, inside)

    def trim(self, node: Node, units: int) -> Ids:
        """Forget checkpoints in the last units; their ids go home, none come back here."""
        left = node.units - units
        for mark in [mark for mark in node.states or () if mark > left]:
            assert node.states is not None
            checkpoint = node.states.pop(mark)
            if checkpoint.status == READY:
                self._states.drop(checkpoint)
            else:
                self._states.detach(checkpoint)
        return _NO_IDS


_NO_IDS: Ids = array("i")
