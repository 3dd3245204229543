"""Expected objects of a server that keeps chunks of prefixes, and expected bytes of blocks."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

CHUNK, BLOCK = 16, 4
"""Tokens."""
EACH = CHUNK // BLOCK
CHUNKS = 8
SEQUENCES = 4
TENANTS = ("", "", "other tenant")
BLOCKS = 80

Key: TypeAlias = tuple[int, str, tuple[int, ...]]
"""Object of a chunk: part, tenant, all tokens up to its end."""


class Pending(NamedTuple):
    """A successful look-up without its retrieve."""

    request: str
    salt: str
    tokens: tuple[int, ...]
    hit: int
    keys: frozenset[Key]


class Added(NamedTuple):
    """Effect of a store on one chunk."""

    again: bool
    """Some object of it was there already."""
    empty: bool
    """A window has left all of it."""
    partly: bool
    """A window has left a part of it."""
    whole: bool
    """All of its objects were added."""
    left: bool
    """Some object with null blocks was left out."""
    hollow: bool
    """Some object is there that was added with null blocks alone."""


class Model:
    """One engine's windows, and the objects of the server with the blocks that were null."""

    def __init__(self, windows: Sequence[int], seed: int, forks: Sequence[int]) -> None:
        self.windows = windows
        self.rows = [8 + 8 * number for number in range(len(windows))]
        """Bytes of a token, by group."""
        self.sequences = _sequences(seed, forks)
        self.parts: list[list[int]] = []
        """Groups by object of a chunk."""
        self.needed: list[int] = []
        """Chunks at the end of a hit that need an object; -1: all."""
        self.there: dict[Key, frozenset[tuple[int, int]]] = {}
        self.writer: dict[Key, int] = {}
        """Object -> the sequence that stored it."""
        self.pending: list[Pending] = []

    def add(
        self,
        sequence: int,
        salt: str,
        at: int,
        null: Sequence[set[int]],
        there: Sequence[bool],
    ) -> Added:
        """Note the objects of a chunk that are new: with all blocks, or with some and `there`."""
        tokens, added = self.sequences[sequence], []
        for part, groups in enumerate(self.parts):
            blocks = [(g, b) for g in groups for b in range(at * EACH, (at + 1) * EACH)]
            holes = frozenset((g, b) for g, b in blocks if b in null[g])
            key = part, salt, tokens[: (at + 1) * CHUNK]
            new, empty = key not in self.there, len(holes) == len(blocks)
            kept = new and (not holes or (not empty and there[part]))
            if kept:
                self.there[key] = holes
                self.writer[key] = sequence
            left, hollow = new and bool(holes) and not kept, new and empty and there[part]
            added.append(Added(not new, empty, bool(holes) and not empty, kept, left, hollow))
        again, empties, partly, whole, *others = zip(*added, strict=True)
        return Added(any(again), any(empties), any(partly), all(whole), *map(any, others))

    def sees(self, group: int, position: int, block: int) -> bool:
        """Whether a position reads a block (X1)."""
        window = self.windows[group]
        return window < 0 or (block + 1) * BLOCK - 1 > position - window

    def content(self, group: int, salt: str, tokens: Sequence[int], block: int) -> bytes:
        """A group's content of a block: it follows from all tokens up to its end."""
        text = repr((group, salt, tuple(tokens[: (block + 1) * BLOCK]))).encode()
        return hashlib.shake_128(text).digest(BLOCK * self.rows[group])

    def longest(self, tokens: Sequence[int], salt: str, most: int) -> set[int]:
        """Return the longest hit by objects, and the longest whose windows see no hole."""
        served = [n for n in range(most + 1) if self.serves(tokens, salt, n)]
        whole = [n for n in served if not self.holed(tokens, salt, n)]
        return {max(served), max(whole)}

    def holed(self, tokens: Sequence[int], salt: str, length: int) -> bool:
        """Whether a window looks at a block that was null when it was stored."""
        used = self.used(tokens, salt, length)
        return any(self.sees(g, length * CHUNK, b) for key in used for g, b in self.there[key])

    def serves(self, tokens: Sequence[int], salt: str, length: int) -> bool:
        """Whether all objects for a hit of so many chunks are there."""
        return all(key in self.there for key in self.used(tokens, salt, length))

    def stored(self, tokens: Sequence[int], salt: str, at: int) -> bool:
        """Whether every object of a chunk is there."""
        prefix = tuple(tokens[: (at + 1) * CHUNK])
        return all((part, salt, prefix) in self.there for part in range(len(self.parts)))

    def used(self, tokens: Sequence[int], salt: str, length: int) -> Iterable[Key]:
        """Return the objects that a hit of so many chunks needs."""
        for part, window in enumerate(self.needed):
            for at in range(0 if window < 0 else max(0, length - window), length):
                yield part, salt, tuple(tokens[: (at + 1) * CHUNK])

    def locked(self) -> set[Key]:
        """Return the objects that a look-up has found and no retrieve has taken."""
        return {key for each in self.pending for key in each.keys}

    def shared(self, number: int) -> bool:
        """Whether others have found the same: a lock that is left would not show."""
        others = self.pending[:number] + self.pending[number + 1 :]
        return any(each.keys & self.pending[number].keys for each in others)


def _sequences(seed: int, forks: Sequence[int]) -> list[tuple[int, ...]]:
    dice = random.Random(seed)  # noqa: S311 - no secret
    first = [dice.randrange(100) for _ in range(CHUNKS * CHUNK)]
    return [(*first[:fork], *(dice.randrange(100) for _ in first[fork:])) for fork in forks]


def ids_of(first: int, start: int, stop: int, *, without: set[int]) -> list[int]:
    """Return blocks for positions, null for those that are left out."""
    blocks = (1 + (first + at) % (BLOCKS - 1) for at in range(stop - start))
    return [0 if start + at in without else block for at, block in enumerate(blocks)]
