"""One client process of the stress test; starts fast, since it is killed soon."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvproof.reference.cache_server.client import CacheClient, connect
from kvproof.reference.stores.object_store import Lease
from kvproof.suites.reference.cache_server.model import content, key

KEYS = 200
LARGEST = 64 << 10
"""Most bytes of an object."""
MOST_LEASES = 3
PIECE = 4096
"""Bytes written at a time, so that a kill leaves some objects half written."""


def size(number: int) -> int:
    """Return the bytes of an object."""
    return 1 + int.from_bytes(key(number)[:4], "little") % LARGEST


class Wrong(Exception):
    """A reader saw wrong bytes."""


def run(address: str, seed: int, place: int, counts: Any, stop: Any, complaint: str) -> None:
    """Do random operations until the stop signal; write errors to a file, which survives a kill."""
    try:
        with connect(address, timeout=30) as client:
            user = User(client, random.Random(seed))
            while not stop.value:
                user.step()
                counts[place] += 1
            user.end()
    except Exception:  # whatever it is, the driver has to read it; it goes on from here
        Path(complaint).write_text(traceback.format_exc(), encoding="utf-8")
        raise


class User:
    """Holds a few leases for a while, and checks them when they begin and end."""

    def __init__(self, client: CacheClient, draw: random.Random) -> None:
        self._client, self._draw = client, draw
        self._leases: list[tuple[Lease, list[int]]] = []
        self._steps: list[tuple[Callable[[], object], int]] = [
            (self._store, 25),
            (self._write_slowly, 20),
            (self._read, 30),
            (self._release, 15),
            (lambda: client.lookup(self._keys(8)), 5),
            (lambda: client.drop(self._keys(2)), 3),
            (lambda: client.pin("stress", self._keys(1)), 1),
            (lambda: client.unpin("stress"), 1),
        ]

    def step(self) -> None:
        """Do one operation."""
        steps, weights = zip(*self._steps, strict=True)
        self._draw.choices(steps, weights)[0]()

    def end(self) -> None:
        """Check and release everything."""
        while self._leases:
            self._release()

    def _numbers(self, most: int) -> list[int]:
        return self._draw.sample(range(KEYS), self._draw.randint(1, most))

    def _keys(self, most: int) -> list[bytes]:
        return [key(number) for number in self._numbers(most)]

    def _store(self) -> None:
        numbers = self._numbers(4)
        self._client.store({key(n): content(key(n), size(n)) for n in numbers})

    def _write_slowly(self) -> None:
        """Write in pieces; skips or interrupts some writes."""
        numbers = {key(n): n for n in self._numbers(4)}
        with self._client.reserve({each: size(n) for each, n in numbers.items()}) as room:
            written = [each for each in room.views if self._draw.random() < 0.9]
            for each in written:
                data = content(each, size(numbers[each]))
                for start in range(0, len(data), PIECE):
                    room.views[each][start : start + PIECE] = data[start : start + PIECE]
            room.commit(written)

    def _read(self) -> None:
        numbers = self._numbers(6)
        lease = self._client.acquire([key(n) for n in numbers])
        self._leases.append((lease, numbers))
        self._check(lease, numbers)
        if len(self._leases) > MOST_LEASES:
            self._release()

    def _release(self) -> None:
        if self._leases:
            lease, numbers = self._leases.pop(0)
            self._check(lease, numbers)
            lease.release()

    def _check(self, lease: Lease, numbers: list[int]) -> None:
        for number, view in zip(numbers, lease.views, strict=True):
            if view is not None and view != content(key(number), size(number)):
                raise Wrong(f"object {number} reads {bytes(view[:16]).hex()}")
