"""The reference's cache server and its clients, for benchmarks of tiers.

A key is a chained SHA-256 of tokens, made inside each call: LMCache hashes the tokens there too.
"""

from __future__ import annotations

import hashlib
import os
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from kvproof.harness.contract.tier import TOKENS, Pages
from kvproof.reference.cache_server.client import connect as connected
from kvproof.reference.stores.object_store import ObjectStore


def serve(folder: Path, *, room: int, ready: Callable[[int], None], ended: threading.Event) -> None:
    """See `Serve`."""
    from kvproof.reference.cache_server.address import parse
    from kvproof.reference.cache_server.core import Settings
    from kvproof.reference.cache_server.server import Server

    with Server(parse(_address(folder)), Settings(room)) as server:
        ready(os.getpid())
        server.serve(ended.is_set)


def connect(folder: Path, number: int) -> Client:
    """See `Connect`."""
    return Client(_address(folder), number)


def _address(folder: Path) -> str:
    return f"ipc://{folder / 'cache.sock'}"


class Client:
    """See TierClient."""

    copies: ClassVar = {"store": 1, "retrieve": 1}

    def __init__(self, address: str, number: int) -> None:
        del number
        self._store = connected(address, timeout=60.0)
        self._pages: Pages

    def register(self, pages: Pages) -> None:
        """See TierClient."""
        self._pages = pages

    def store(self, turn: int) -> int:
        """See TierClient."""
        del turn
        return stored(self._store, self._pages)

    def lookup(self, turn: int) -> int:
        """See TierClient."""
        del turn
        return sum(self._store.lookup(keys_of(self._pages.tokens)))

    def retrieve(self, turn: int) -> int:
        """See TierClient."""
        del turn
        return copied(self._store, self._pages)

    def clear(self) -> None:
        """See TierClient."""
        self._store.clear()

    def close(self) -> None:
        """See TierClient."""
        self._store.close()


def stored(store: ObjectStore, pages: Pages) -> int:
    """Name and store all objects; returns how many are there now."""
    rows = [memoryview(row) for row in pages.source]
    return len(store.store(dict(zip(keys_of(pages.tokens), rows, strict=True))))


def copied(store: ObjectStore, pages: Pages) -> int:
    """Find, copy and let go all objects; returns how many came."""
    count = 0
    with store.acquire(keys_of(pages.tokens)) as lease:
        for row, view in zip(pages.target, lease.views, strict=True):
            if view is not None:
                memoryview(row)[:] = view
                count += 1
    return count


def keys_of(tokens: tuple[int, ...]) -> list[bytes]:
    """Return the chained SHA-256 of the tokens of each object."""
    packed, digest, keys = memoryview(array("i", tokens).tobytes()), b"", []
    width = TOKENS * array("i").itemsize
    for at in range(0, len(packed), width):
        digest = hashlib.sha256(digest + packed[at : at + width]).digest()
        keys.append(digest)
    return keys
