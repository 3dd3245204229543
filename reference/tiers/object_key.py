"""Keys of objects: digests of everything that their bytes depend on (H1, H2, H6, H7).

    fixed: format, weights, layout of groups, geometry of the data plane
      root: fixed, epoch, namespace
        link: link before it (or root), tokens of one unit, spans that begin in it
          key: link, part

A link stands for the whole prefix up to the end of its unit. Parts of one unit are objects of
their own: `full` (blocks of full attention), `local0`, `local1`, ... (blocks of one class of
windows or chunks), `state` (the recurrent state after exactly this unit), `experts` (rows).
"""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.identity import (
    TOKEN_BYTES,
    BlockKeys,
    KeyChain,
    Namespace,
    Span,
    encode,
    hash_algorithm,
)
from kvproof.reference.stores.object_store import KEY_BYTES

FULL, STATE, EXPERTS = "full", "state", "experts"


def local(index: int) -> str:
    """Name the part of a class of windows or chunks."""
    return f"local{index}"


class ObjectKeys:
    """Makes keys for one cache. Equal in every process with equal weights, layout and geometry."""

    def __init__(self, config: CacheConfig, weights: str = "", geometry: str = "") -> None:
        """`geometry` describes a block in the data plane: dtype, heads, order."""
        self._digest = hash_algorithm(config.hash_algorithm)
        self._unit = config.layout.unit
        self._fixed = encode("kvproof object 1", weights, _layout(config), geometry)
        self._chain = KeyChain(self._hash, self._fixed, 0)

    def begin_epoch(self, epoch: int, nonce: bytes) -> None:
        """Make other keys from now on (H6).

        The weights of a later epoch have no name. Its keys include `nonce`, which no other process
        has, so no other process finds the objects.
        """
        self._chain = KeyChain(self._hash, self._fixed, epoch, nonce)

    def key(self, link: bytes, part: str) -> bytes:
        """Return the key of one part of a unit."""
        return self._hash(encode(link, part))

    def root(self, namespace: Namespace) -> bytes:
        """Return the predecessor of the first link of a chain."""
        return self._chain.root(namespace)

    def link(self, before: bytes, tokens: bytes, marks: Sequence[Span]) -> bytes:
        """Return the link of a unit with these token bytes; `marks` are spans that begin in it."""
        return self._chain.link(before, tokens, marks)

    def chain(
        self, namespace: Namespace, tokens: bytes, spans: Sequence[Span], units: int
    ) -> list[bytes]:
        """Return the links of the first `units` units of a request (H5)."""
        keys = BlockKeys(self._chain, block_size=self._unit, namespace=namespace)
        keys.extend(tokens[: units * self._unit * TOKEN_BYTES], spans)
        return keys.keys

    def _hash(self, data: bytes) -> bytes:
        digest = self._digest(data)
        assert len(digest) >= KEY_BYTES, "the configuration refuses shorter digests"
        return digest


def _layout(config: CacheConfig) -> bytes:
    groups = (
        encode(g.kind, g.block_size, g.size, g.kernel_size, int(g.draft), g.state_blocks)
        for g in config.layout.groups
    )
    return encode(*config.experts, config.state_pool, *groups)
