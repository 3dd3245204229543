"""Checkpoints on the nodes of the index: which states a path can be resumed from (S1, S7)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.checkpoint import READY, Checkpoint
from kvproof.reference.prefix.trie import Node
from kvproof.reference.states.state_cache import StateCache


class CheckpointIndex:
    """Keeps nodes and `StateCache` agreed; the owner of a published checkpoint is its node."""

    def __init__(self, states: StateCache, unit: int) -> None:
        self._states = states
        self._unit = unit

    def last(self, node: Node, tokens: int) -> Checkpoint | None:
        """Return the last checkpoint after at most `tokens` tokens on the path of `node` (S1)."""
        units = tokens // self._unit
        while node.units:
            marks = node.states
            if marks:
                inside = units - node.start
                if inside in marks:
                    return marks[inside]
                best = max((mark for mark in marks if mark <= inside), default=0)
                if best:
                    return marks[best]
            node = node.parent
        return None

    def clamp(self, node: Node, tokens: int) -> int:
        """Return the longest length <= `tokens` with a checkpoint on the path of `node` (S1)."""
        checkpoint = self.last(node, tokens)
        return checkpoint.tokens if checkpoint else 0

    def attach(self, end: Node, checkpoints: Sequence[Checkpoint]) -> None:
        """Publish reserved checkpoints on the path of `end`, but where equal ones are (S2).

        They are of one request. The step that saved them has ended: its producer needs no pin.
        """
        unit, attached = self._unit, checkpoints
        for checkpoint in checkpoints:
            node, units = end, checkpoint.tokens // unit
            while node.start >= units:
                node = node.parent
            marks, inside = node.states, units - node.start
            if marks is None:
                node.states = {inside: checkpoint}
            elif inside in marks:
                self._states.discard(checkpoint)
                attached = [*attached]
                attached.remove(checkpoint)
                continue
            else:
                marks[inside] = checkpoint
            checkpoint.owner = node
        if attached:
            self._states.publish_saved(attached)

    def detach_evicted(self, checkpoint: Checkpoint) -> Node:
        """Take an evicted checkpoint off its node, which is returned."""
        node = checkpoint.owner
        assert isinstance(node, Node)
        assert node.states is not None
        del node.states[checkpoint.tokens // self._unit - node.start]
        return node

    def split(self, front: Node, back: Node) -> None:
        """Divide the checkpoints of `back` (see `Attached`)."""
        marks, back.states = back.states, None
        for units, checkpoint in (marks or {}).items():
            node, inside = (front, units) if units <= front.units else (back, units - front.units)
            node.states = node.states or {}
            node.states[inside] = checkpoint
            checkpoint.owner = node

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
