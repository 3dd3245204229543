"""The reference's cache server and its clients, for benchmarks of tiers.

A key is a chained SHA-256 of tokens, made inside each call: LMCache hashes the tokens there too.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections.abc import Callable
from pathlib import Path

from kvproof.harness.contract.tier import TOKENS, Pages
from kvproof.reference.cache_server.client import connect as connected


def serve(folder: Path, *, room: int, ready: Callable[[], None], ended: threading.Event) -> None:
    """See `Serve`."""
    from kvproof.reference.cache_server.address import parse
    from kvproof.reference.cache_server.core import Settings
    from kvproof.reference.cache_server.server import Server

    with Server(parse(_address(folder)), Settings(room)) as server:
        ready()
        server.serve(ended.is_set)


def connect(folder: Path, number: int) -> Client:
    """See `Connect`."""
    return Client(_address(folder), number)


def _address(folder: Path) -> str:
    return f"ipc://{folder / 'cache.sock'}"


class Client:
    """See TierClient."""

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
        keys = _keys(self._pages.tokens)
        rows = [memoryview(row) for row in self._pages.source]
        return len(self._store.store(dict(zip(keys, rows, strict=True))))

    def lookup(self, turn: int) -> int:
        """See TierClient."""
        del turn
        return sum(self._store.lookup(_keys(self._pages.tokens)))

    def retrieve(self, turn: int) -> int:
        """See TierClient."""
        del turn
        keys, count = _keys(self._pages.tokens), 0
        there = self._store.lookup(keys)
        found = [key for key, flag in zip(keys, there, strict=True) if flag]
        with self._store.acquire(found) as lease:
            for row, view in zip(self._pages.target, lease.views, strict=False):
                if view is not None:
                    memoryview(row)[:] = view
                    count += 1
        return count

    def clear(self) -> None:
        """See TierClient."""
        self._store.clear()

    def close(self) -> None:
        """See TierClient."""
        self._store.close()


def _keys(tokens: tuple[int, ...]) -> list[bytes]:
    packed, digest, keys = memoryview(array("i", tokens).tobytes()), b"", []
    width = TOKENS * array("i").itemsize
    for at in range(0, len(packed), width):
        digest = hashlib.sha256(digest + packed[at : at + width]).digest()
        keys.append(digest)
    return keys
