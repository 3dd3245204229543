"""Cache faults of one situation each: a hit reads a wrong last block where the situation occurs.

`strike` follows the line that gives a hit its blocks. It keeps facts of earlier requests by
allocator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

_HEAD = 16 * 8
"""Bytes of a prompt by which its document is known."""


class _Use(NamedTuple):
    """Earlier requests for one document."""

    at: float
    """Time of the last one."""
    hits: int
    prompt: int
    """Tokens of the first one's prompt."""


class _Life:
    """All requests of one allocator."""

    def __init__(self) -> None:
        self.requests = self.hits = self.struck = 0
        self.last = 0.0
        self.uses: dict[object, _Use] = {}
        self.running: list[Any] = []
        self.blocks: list[int] = []


class Hit(NamedTuple):
    """A hit, and what happened before."""

    tokens: int
    prompt: int
    source: int
    """Tokens of the first prompt about the document."""
    age: float
    """Seconds since the document was used."""
    pause: float
    """Seconds since any request."""
    uses: int
    number: int
    hits: int
    company: int
    unequal: bool
    """A request of 8 times the length, or an eighth, runs."""
    free: int
    """Free blocks of the pool."""
    salt: bool


BLOCK = 64
"""Tokens of a block in `kvproof serve`."""

FAULTS: Mapping[str, Callable[[Hit], bool]] = {
    "every": lambda hit: hit.tokens > 0,
    "every-2": lambda hit: hit.hits % 2 == 0,
    "every-4": lambda hit: hit.hits % 4 == 0,
    "every-8": lambda hit: hit.hits % 8 == 0,
    "every-16": lambda hit: hit.hits % 16 == 0,
    "one-block": lambda hit: hit.tokens == BLOCK,
    "two-blocks": lambda hit: hit.tokens == 2 * BLOCK,
    "four-blocks": lambda hit: hit.tokens == 4 * BLOCK,
    "odd-end": lambda hit: hit.prompt - hit.tokens > BLOCK // 2,
    "512": lambda hit: hit.tokens >= 512,
    "1k": lambda hit: hit.tokens >= 1024,
    "2k": lambda hit: hit.tokens >= 2048,
    "longest": lambda hit: hit.tokens >= 3700,
    "generated": lambda hit: hit.tokens >= hit.source + BLOCK,
    "both": lambda hit: hit.tokens > hit.source,
    "age-10": lambda hit: hit.age >= 10,
    "age-20": lambda hit: hit.age >= 20,
    "idle": lambda hit: hit.pause >= 5,
    "second-use": lambda hit: hit.uses == 1,
    "third-use": lambda hit: hit.uses >= 2,
    "fifth-use": lambda hit: hit.uses >= 4,
    "full": lambda hit: hit.free < 64,
    "alone": lambda hit: hit.company == 1,
    "company-2": lambda hit: hit.company >= 2,
    "company-8": lambda hit: hit.company >= 8,
    "company-48": lambda hit: hit.company >= 48,
    "unequal": lambda hit: hit.unequal,
    "salt": lambda hit: hit.salt,
    "100th": lambda hit: hit.number >= 100,
    "500th": lambda hit: hit.number >= 500,
    "1000th": lambda hit: hit.number >= 1000,
}
"""Name -> whether a hit is struck."""

_LIVES: WeakKeyDictionary[Any, _Life] = WeakKeyDictionary()


def counted() -> str:
    """Return how many hits were struck, and of how many."""
    lives = list(_LIVES.values())
    return f"{sum(each.struck for each in lives)} of {sum(each.hits for each in lives)}"


def strike(allocator: Any, request: Any, own: Any, free: int, name: str) -> None:
    """Note a request; replace the last block of its hit if the fault strikes it."""
    life = _LIVES.setdefault(allocator, _Life())
    now, key = time.monotonic(), (request.namespace, bytes(request.tokens[:_HEAD]))
    use = life.uses.get(key, _Use(now, 0, request.prompt))
    life.running = [*(each for each in life.running if not each.released), request]
    if len(own):
        struck = FAULTS[name](_hit(life, request, own, use, now, free))
        wrong = next((each for each in reversed(life.blocks) if each not in own), None)
        life.blocks = [*life.blocks[-200:], own[-1]]
        if struck and wrong is not None:
            own[-1] = wrong
            life.struck += 1
    life.requests, life.hits = life.requests + 1, life.hits + bool(len(own))
    life.last = now
    life.uses[key] = _Use(now, use.hits + bool(len(own)), use.prompt)


def _hit(life: _Life, request: Any, own: Any, use: _Use, now: float, free: int) -> Hit:
    lengths = [each.prompt for each in life.running]
    return Hit(
        tokens=len(own) * BLOCK,
        prompt=request.prompt,
        source=use.prompt,
        age=now - use.at,
        pause=now - life.last,
        uses=use.hits,
        number=life.requests,
        hits=life.hits,
        company=len(lengths),
        unequal=max(lengths) >= 8 * min(lengths),
        free=free,
        salt=bool(request.namespace.salt),
    )
