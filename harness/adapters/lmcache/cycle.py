"""The life of a request in LMCache's manager, for benchmarks (`target.Cycle`).

The handlers of its server, without sockets: look up and lock, retrieve the hit, store the rest, end
the session. LMCache hands out no blocks: those of the engine are given, always the same ones, with
one layer of two bytes a token. What its thread for look-ups takes is not on the clock. Engine
environment only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from kvproof.harness.adapters.lmcache.api import check_drift, engine
from kvproof.harness.adapters.lmcache.server import Server
from kvproof.harness.contract.target import Cycle, TargetConfig
from kvproof.harness.errors import UnsupportedVerb

CHUNK = 256
"""Tokens, LMCache's default."""
_ROW = 2
"""Bytes of a token."""
_OBJECT = 4096
"""Bytes that an object takes at least."""
_LONGEST = 1 << 17
"""Most tokens of a prompt."""
_RUNNING: list[Server] = []
"""A process has one server, since the part that ends its copies is found by its name."""
_SHARE = 0.1
"""Share of the objects that an eviction takes."""


class _Chunks:
    lacks = "blocks of the engine: no allocation, tables or release"
    given: ClassVar = {
        "prompt": "list of int",
        "identity": "chained hashes of 256 tokens",
        "match, room, registration": (
            "lookup, wait_prefetch_status, retrieve of the hit, store_with_chunk_mask of the rest"
        ),
        "tables": "none: the engine's blocks are given",
        "end": "end_session",
        "in its favour": "no sockets; its thread for look-ups is not on the clock",
    }

    def __init__(self, config: TargetConfig) -> None:
        room = max(1, config.num_blocks * config.block_size // CHUNK)
        while _RUNNING:
            _RUNNING.pop().close()
        self._server = Server(
            room=(room + 64) * _OBJECT, eviction="LRU", separate=False, chunk=CHUNK
        )
        _RUNNING.append(self._server)
        blocks = _LONGEST // config.block_size
        table = {
            "blocks": blocks + 1,
            "block": config.block_size,
            "row": _ROW,
            "window": -1,
            "type": "bfloat16",
        }
        self._server.engine(instance=0, tables=[table])
        self._blocks = [*range(1, blocks + 1)]
        self._each = CHUNK // config.block_size

    def prepare(self, tokens: memoryview) -> list[int]:
        """A list of int."""
        return tokens.tolist()

    def run(self, index: int, prompt: Any) -> tuple[int, Sequence[Any], Sequence[int]]:
        """Look up, retrieve, store. Raises MemoryError if an object does not fit."""
        server, name = self._server, str(index)
        chunks = len(prompt) // CHUNK
        named = {"request": name, "tokens": prompt, "start": 0, "end": chunks * CHUNK}
        found = server.ask(**named)
        if found:
            part = {**named, "end": found * CHUNK}
            server.take(instance=0, ids=[self._blocks[: found * self._each]], **part)
        if found < chunks:
            self._store(found, chunks, {**named, "start": found * CHUNK})
        server.end(request=name)
        return min(found * CHUNK, len(prompt) - 1), (), ()

    def _store(self, found: int, chunks: int, part: dict[str, Any]) -> None:
        ids = [self._blocks[found * self._each : chunks * self._each]]
        for _ in range(2):
            well, _ = self._server.store(instance=0, ids=ids, **part)
            if well:
                return
            self._server.evict(share=_SHARE)
        raise MemoryError(f"request {part['request']}: {chunks - found} chunks do not fit")

    def cached_blocks(self) -> int:
        """Blocks whose content is in its memory."""
        return self._server.status()["total_object_count"] * self._each


def make_cycle(config: TargetConfig, variant: str = "") -> Cycle:
    """Build the native cycle; it has no variants."""
    check_drift()
    if config.groups:
        raise UnsupportedVerb("make_cycle with groups", "one group of full attention is driven")
    if variant:
        raise UnsupportedVerb(f"the variant {variant!r}", "LMCache manages no blocks of an engine")
    if CHUNK % config.block_size:
        raise UnsupportedVerb(
            f"make_cycle with blocks of {config.block_size}", f"a chunk is {CHUNK}"
        )
    engine()
    return _Chunks(config)
