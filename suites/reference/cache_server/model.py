"""The expected content of a cache server, kept without its help."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from kvproof.reference.cache_server.allocator import rounded
from kvproof.reference.cache_server.reservation import Reservation
from kvproof.reference.stores.object_store import Lease


@lru_cache(maxsize=1024)
def key(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(8, "little")).digest()


@lru_cache(maxsize=256)
def content(of: bytes, size: int) -> bytes:
    return hashlib.shake_128(of).digest(size)


@dataclass(eq=False)
class Life:
    space: str
    number: int
    size: int
    used: int = 0
    pins: set[str] = field(default_factory=set)
    listed: bool = True
    flipped: bool = False


@dataclass(eq=False)
class Copy:
    """A copy into a reservation, which happens when the machine runs it."""

    number: int
    view: memoryview
    done: int = 0
    """Bytes copied; at the end, all."""
    open: bool = True
    """The key was not dropped, and the writer did not time out."""
    silent: bool = False
    """The writer timed out, and only that closed the copy."""


@dataclass(eq=False)
class Room:
    """A reservation."""

    reservation: Reservation
    copies: list[Copy]
    order: list[int]
    present: dict[int, Life]
    void: bool = False


@dataclass(eq=False)
class Holding:
    lease: Lease
    lives: list[Life | None]
    void: bool = False


class Model:
    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.there: dict[tuple[str, int], Life] = {}
        self.names: dict[tuple[str, str], list[Life]] = {}
        """Namespace and name of pins -> pinned objects, in order."""
        self._clock = 0

    def publish(self, space: str, number: int) -> None:
        """Add a committed object."""
        life = Life(space, number, self.sizes[number])
        self.there[space, number] = life
        self.use(life)

    def use(self, life: Life) -> None:
        self._clock += 1
        life.used = self._clock

    def forget(self, lives: Iterable[Life]) -> None:
        for life in lives:
            life.listed = False
            for name in life.pins:
                self.names[life.space, name].remove(life)
            life.pins.clear()
            del self.there[life.space, life.number]

    def pin(self, space: str, number: int, name: str, share: float) -> bool:
        life = self.there.get((space, number))
        if life is None:
            return False
        kept = bytes_of(each.size for each in self.pinned())
        if not life.pins and kept + rounded(life.size) > share:
            return False
        if name not in life.pins:
            life.pins.add(name)
            self.names.setdefault((space, name), []).append(life)
        return True

    def unpin(self, space: str, name: str) -> list[Life]:
        """Remove a pin name; returns its objects."""
        lives = self.names.pop((space, name), [])
        for life in lives:
            life.pins.remove(name)
        return lives

    def of(self, space: str) -> dict[int, Life]:
        """Return the readable objects of a namespace."""
        return {n: life for (name, n), life in self.there.items() if name == space}

    def idle(self, held: set[Life]) -> list[Life]:
        idle = [life for life in self.there.values() if life not in held and not life.pins]
        return sorted(idle, key=lambda life: life.used)

    def pinned(self) -> Iterator[Life]:
        """Return the objects with a pin."""
        return (life for life in self.there.values() if life.pins)


def bytes_of(sizes: Iterable[int]) -> int:
    return sum(map(rounded, sizes))
