"""A request that holds blocks, and what the cache manager answers about it."""

from __future__ import annotations

from typing import NamedTuple

from kvproof.reference.access import Access
from kvproof.reference.block_pool import Ids
from kvproof.reference.identity import Segment
from kvproof.reference.trie_node import Node


class Admission(NamedTuple):
    """Positions [0, hit) are cached, [hit, stop) are computed by the step in progress."""

    hit: int
    stop: int
    table: Ids
    """The request's own table, block ids in position order; grows with the request."""
    access: Access


class Refusal(NamedTuple):
    """Nothing changed (B4). `reason` is `no_space` or `never_fits` (B8)."""

    reason: str
    needed: int
    available: int


class Usage(NamedTuple):
    """Blocks by owner; they add up to the pool without its null block (B7)."""

    free: int
    held: int
    cached: int


class Live:
    """A request that holds blocks, or did until a step in flight is done."""

    __slots__ = (
        "access", "computed", "epoch", "indexed", "last_step", "node", "released", "segments",
        "table", "tokens",
    )  # fmt: skip

    tokens: bytes | bytearray
    """All tokens known so far, int32."""
    segments: tuple[Segment, ...]
    access: Access
    node: Node
    table: Ids
    indexed: int
    computed: int
    """Tokens computed or scheduled to be."""
    last_step: int
    epoch: int
    released: bool
    """Steps that end later index nothing for it."""
