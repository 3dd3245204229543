"""Calls of the suite `disaggregation`: prompts that move from prefilling to decoding workers.

    traits {}                 -> `lacks`: capability -> why not (`CAPABILITIES`), and `layouts`
    open   {prefill, decode}  -> why the engine refuses them, or null (`Refused`)
    move   {...}              -> what a prompt's move did (`Prompt`, `Moved`)

Both sides serve one model: `layers` layers, each with `heads` heads of keys and values, or with one
latent head that every worker holds. A worker of rank r of n has the heads from r * heads // n on,
heads // n of them and at least one. With `context` ranks, block k of a prompt lies on rank k mod
`context`, there as block k // `context`. A slot has the content of one head and token, given
by `words`. It runs inside the engine's environment: Python 3.10.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

CAPABILITIES = {
    "latent": "latent heads, which all workers hold",
    "context": "context parallel: the blocks of a prompt lie on several ranks",
    "kernel": "kernel blocks that are smaller than blocks",
    "unequal": "blocks of unlike sizes on both sides",
    "copies": "more workers than heads on the side that prefills",
}
"""Capability -> the pairs that need it."""
WORDS = 2
"""64-bit words of a slot."""
Words: TypeAlias = NDArray[np.int64]
_MIX = np.uint64(0x9E3779B97F4A7C15)


def words(prompt: int, layers: int, heads: Sequence[int], positions: Sequence[int]) -> Words:
    """Return the content of slots, unlike for each: [layer, head, position, word]."""
    sizes = layers, len(heads), len(positions)
    mixed = np.full(sizes, prompt + 1, np.uint64)
    for axis, values in enumerate((range(layers), heads, positions)):
        shape = [-1 if each == axis else 1 for each in range(3)]
        each = np.asarray(values, np.uint64).reshape(shape)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * _MIX + each + np.uint64(1)
    return np.stack([mixed, ~mixed], -1).view(np.int64)


def packed(caches: Sequence[Words]) -> str:
    """Return a worker's content, [block, head, offset, word] of each layer, as text."""
    return b64encode(b"".join(np.ascontiguousarray(each).tobytes() for each in caches)).decode()


@dataclass(frozen=True)
class Side:
    """All workers of an engine."""

    ranks: int
    block_size: int
    blocks: int
    """Blocks of each worker's pool."""
    heads: int
    layers: int
    layout: str
    """One of the layouts in the traits."""
    kernel: int = 0
    """Tokens of a kernel block; 0: those of a block."""
    context: int = 1
    """Ranks that share the blocks of a prompt: 1, or all of them."""
    latent: bool = False

    def of_rank(self, rank: int) -> range:
        """Return the heads of a worker."""
        if self.latent:
            return range(1)
        first = rank * self.heads // self.ranks
        return range(first, first + max(1, self.heads // self.ranks))

    def holds(self, rank: int, position: int) -> bool:
        """Whether a worker has the slot of a position."""
        return position // self.block_size % self.context == rank % self.context

    def held(self, rank: int, end: int) -> list[int]:
        """Return the positions before `end` of which a worker has the slots."""
        return [p for p in range(end) if self.holds(rank, p)]

    def slots(self, table: Sequence[int], positions: Sequence[int]) -> tuple[Any, Any]:
        """Return blocks and offsets of positions, on the workers that hold them."""
        at = np.asarray(positions, np.int64)
        blocks = np.asarray([*table, 0])[at // self.block_size // self.context]
        return blocks, at % self.block_size

    def position(self, rank: int, index: int, offset: int) -> int:
        """Return the position of a slot in the block of a table; -1 for no block of it."""
        whole = (index * self.context + rank % self.context) * self.block_size + offset
        return whole if index >= 0 else -1

    def length(self, tokens: int) -> int:
        """Return the number of blocks in a table."""
        return -(-tokens // (self.block_size * self.context))


@dataclass(frozen=True)
class Prompt:
    """A prompt that is prefilled and then moved."""

    number: int
    tokens: int
    cached: int
    """Blocks of the table that the decoding side holds already."""
    prefill: list[int]
    """The table on the side that prefills."""
    decode: list[int]
    order: list[int]
    """Ranks of the decoding side, in the order in which they take their part."""


class Moved(NamedTuple):
    """What a move did."""

    error: str
    """Why it ended in the middle; empty: it did not."""
    content: list[str]
    """The `packed` caches of the decoding workers."""
    read: list[list[int]]
    """Prefilling ranks from which bytes were taken, for each decoding worker in turn."""
    freed: list[list[int]]
    """Prefilling ranks that let go of the prompt, after each decoding worker in turn."""


class Refused(NamedTuple):
    """Two sides that the engine does not connect."""

    why: str
    """The engine's own words."""
    alone: bool = False
    """Whether it does not start one of them, whatever the other one is."""


class Pair(Protocol):
    """Two sides that are connected."""

    def move(self, prompt: Prompt) -> Moved:
        """Let the prompt be computed on one side and taken over by the other one."""


Opening = Callable[[Side, Side], "Pair | Refused"]
"""Connects prefill and decode."""

_OPEN: dict[str, Pair] = {}


def answered(arguments: dict[str, Any], traits: dict[str, Any], opening: Opening) -> dict[str, Any]:
    """Carry out calls, in order."""
    answers: list[Any] = []
    for verb, keywords in arguments["calls"]:
        if verb == "traits":
            answers.append(traits)
        elif verb == "open":
            _OPEN.clear()
            pair = opening(Side(**keywords["prefill"]), Side(**keywords["decode"]))
            if isinstance(pair, Refused):
                answers.append(pair._asdict())
            else:
                _OPEN["pair"] = pair
                answers.append(None)
        else:
            answers.append(_OPEN["pair"].move(Prompt(**keywords))._asdict())
    return {"answers": answers}
