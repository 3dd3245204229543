"""Cache events whose replay equals the index at any time (V4)."""

from __future__ import annotations

from array import array
from typing import Literal, NamedTuple

from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.identity import (
    DEFAULT_NAMESPACE,
    TOKEN_BYTES,
    KeyChain,
    Namespace,
    Span,
    hash_algorithm,
)
from kvproof.reference.prefix.trie import Node

GROUP = 0
"""Events name units of the index, which stand for all groups at once."""


class CacheEvent(NamedTuple):
    """One block entered or left the index; `key` depends on all of H1, the group and the epoch."""

    kind: Literal["stored", "removed", "cleared"]
    key: bytes = b""
    parent: bytes = b""
    """Key of the block before; empty for the first block of a chain."""
    group: int = 0
    tokens: tuple[int, ...] = ()
    namespace: Namespace = DEFAULT_NAMESPACE
    spans: tuple[Span, ...] = ()
    """Spans that begin inside the block."""


class EventLog:
    """Listens to a `PrefixTrie` and keeps events until they are drained."""

    def __init__(self, config: CacheConfig) -> None:
        self._stride = config.layout.unit * TOKEN_BYTES
        self._width = config.layout.full.width
        self._digest = hash_algorithm(config.hash_algorithm)
        self._chain = KeyChain(self._digest, "kvproof", GROUP, 0)
        self._keys: dict[int, bytes] = {}
        self._events: list[CacheEvent] = []

    def drain(self) -> list[CacheEvent]:
        """Return the events since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    def clear(self, epoch: int) -> None:
        """Everything left the index at once (H6)."""
        self._keys.clear()
        self._chain = KeyChain(self._digest, "kvproof", GROUP, epoch)
        self._events.append(CacheEvent("cleared"))

    def on_change(self, kind: str, node: Node, first: int, last: int) -> None:
        """Record blocks `first` .. `last` of a node; removals come end first."""
        if kind == "stored":
            for index in range(first, last):
                self._stored(node, index)
        else:
            ids = slice(first * self._width, last * self._width, self._width)
            for block in node.blocks[ids][::-1]:
                self._events.append(CacheEvent("removed", self._keys.pop(block)))

    def _stored(self, node: Node, index: int) -> None:
        *_, root = node.path()
        namespace = root.key
        assert isinstance(namespace, Namespace)
        marks = node.key[1] if index == 0 and isinstance(node.key, tuple) else ()
        tokens = bytes(node.tokens[index * self._stride : (index + 1) * self._stride])
        parent = self._parent(node, index)
        key = self._chain.link(parent or self._chain.root(namespace), tokens, marks)
        self._keys[node.blocks[index * self._width]] = key
        ids = tuple(array("i", tokens))
        self._events.append(CacheEvent("stored", key, parent, GROUP, ids, namespace, marks))

    def _parent(self, node: Node, index: int) -> bytes:
        if index:
            return self._keys[node.blocks[(index - 1) * self._width]]
        above = node.parent
        return self._keys[above.blocks[-self._width]] if above.units else b""
