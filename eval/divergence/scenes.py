"""Prompts for situations that documents of one length never reach.

A scene is two prompts: the first fills the cache, the second shares a beginning with it that ends
where its kind wants. A turn goes on after the answer to the first.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

from kvproof.harness.http.completion_client import Prompt

Kind: TypeAlias = Literal[
    "block", "part", "salt", "adapter", "image", "twin", "turn", "1k", "8k", "32k", "longest"
]

_ANY = ("sleep", "weights", "restart", "reset", "100th", "500th", "1000th")
"""Situations that all short kinds reach."""

REACHES: Mapping[Kind, tuple[str, ...]] = {
    "block": (
        "one-block", "third-use", "old", "idle", "64-at-once", "long-beside-short", *_ANY,
    ),
    "part": (
        "partial-block", "third-use", "old", "2-at-once", "64-at-once", "evicted", "pool-full",
        "preempted", "resumed", "host", "disk", "peer", *_ANY,
    ),
    "salt": ("salt", "other-namespace"),
    "adapter": ("adapter",),
    "image": ("image", "swapped-images"),
    "twin": ("twins",),
    "turn": ("generated", "both"),
    "1k": ("1k", "long-beside-short"),
    "8k": ("8k",),
    "32k": ("32k",),
    "longest": ("longest",),
}  # fmt: skip
"""Kind, the cheapest first -> situations for which it is drawn."""

EACH = 8
"""Documents of a kind: as many as a situation needs to be judged by itself."""

BLOCKS = (16, 32, 64, 128, 256)
"""Usual blocks, in tokens. A beginning of three tokens more is a hit of one block."""

ANSWER = 160
"""Tokens of the answer before a turn: two whole blocks of 64 wherever the prompt ends."""

_TAIL = 24
"""Tokens after the common beginning of two prompts."""
_PIECE = 48
"""Tokens in a row from one document."""
_LENGTHS: Mapping[Kind, int] = {"1k": 1_250, "8k": 8_700, "32k": 33_300}
ROOM = 64
"""Tokens of the longest prompt that are left for answers."""


class Scene(NamedTuple):
    """Prompts of one document of a kind."""

    number: int
    kind: Kind
    begun: Prompt
    shared: int
    """Pieces of the first prompt with which the second one begins."""
    tail: Prompt

    def continued(self, answer: Prompt) -> Prompt:
        """Return the second prompt; `answer` is that to the first."""
        begun = self.begun[: self.shared]
        between = answer if self.kind == "turn" else answer[:0]
        return joined(joined(begun, between), self.tail)


def joined(one: Prompt, other: Prompt) -> Prompt:
    """Return both in a row; nothing is of either kind."""
    if isinstance(one, str) or isinstance(other, str):
        return f"{one or ''}{other or ''}"
    return (*one, *other)


def scenes(
    wanted: Iterable[str], pool: Prompt, *, first: int, seed: int, longest: int
) -> Iterator[Scene]:
    """Draw all kinds that reach a wanted situation; numbers begin at `first`.

    `pool`: tokens or text that pieces are taken from. `longest`: most tokens of a prompt with its
    answer.
    """
    rng, names = random.Random(f"{seed} scenes"), set(wanted)  # noqa: S311 - drawn to be repeated
    number = itertools.count(first)
    for kind, reached in REACHES.items():
        if names.intersection(reached):
            for shared in _shared(rng, kind, longest):
                yield _scene(rng, next(number), kind, pool, shared)


def _scene(rng: random.Random, number: int, kind: Kind, pool: Prompt, shared: int) -> Scene:
    if kind == "image":  # its prompts are chats
        return Scene(number, kind, pool[:0], 0, pool[:0])
    unit = 4 if isinstance(pool, str) else 1
    begun = _drawn(rng, pool, (shared + _TAIL) * unit)
    whole = len(begun) if kind == "turn" else shared * unit
    return Scene(number, kind, begun, whole, _drawn(rng, pool, _TAIL * unit))


def flood(pool: Prompt, tokens: int, *, seed: str) -> Prompt:
    """Draw a new prompt that only takes room."""
    unit = 4 if isinstance(pool, str) else 1
    return _drawn(random.Random(seed), pool, tokens * unit)  # noqa: S311 - no secret


def _shared(rng: random.Random, kind: Kind, longest: int) -> list[int]:
    """Tokens that both prompts of each document share."""
    if kind == "block":
        found = [block + 3 for block in BLOCKS for _ in range(EACH)]
    elif kind in _LENGTHS:
        found = [_LENGTHS[kind] + rng.randrange(64) for _ in range(EACH)]
    elif kind == "longest":
        found = [longest - ROOM - 2 * _TAIL] * EACH
    else:
        found = [rng.randrange(150, 700) // 16 * 16 + rng.randrange(1, 16) for _ in range(EACH)]
    most = longest - ROOM - _TAIL - (ANSWER if kind == "turn" else 0)
    return [each for each in found if each + _TAIL <= most]


def _drawn(rng: random.Random, pool: Prompt, length: int) -> Prompt:
    """Join pieces of the pool, so that no two prompts begin alike."""
    size = min(len(pool), _PIECE * (4 if isinstance(pool, str) else 1))
    starts = [rng.randrange(len(pool) - size + 1) for _ in range(-(-length // size))]
    if isinstance(pool, str):
        return "".join(pool[at : at + size] for at in starts)[:length]
    return tuple(token for at in starts for token in pool[at : at + size])[:length]
