"""Shadow memory: what every physical slot holds, known without asking the engine.

A *fingerprint* stands for everything that determines the content at a position: all tokens up
to it, the namespace, the spans begun so far, and the epoch. It is a sum of one pseudo-random
64-bit number per (position, token), so the fingerprints of a whole prompt are one cumulative sum
over an array; two different histories agree with a chance of 2**-64. A slot is addressed by the
kernel-block table that the engine's worker would read: slot = page * page_size + offset.

Needs numpy only: whole workloads are checked inside the environment of the engine under test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvproof.harness.target import Namespace, Request, Span

Fingerprints = npt.NDArray[np.uint64]
Slots = npt.NDArray[np.int64]

POISON = np.uint64(0)
"""Content of a slot that was never written."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(values: Fingerprints) -> Fingerprints:
    """Apply the finaliser of splitmix64: a bijection that spreads every bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _digest(*fields: object) -> np.uint64:
    data = hashlib.blake2b(repr(fields).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(data, "little"))


def terms(tokens: npt.NDArray[np.int64], first: int = 0) -> Fingerprints:
    """Return the number that each token adds; `first` is the position of tokens[0]."""
    positions = np.arange(first + 1, first + 1 + len(tokens), dtype=np.uint64)
    return _mix(_mix(tokens.astype(np.uint64) + _GOLDEN) ^ (positions * _GOLDEN))


def root(namespace: Namespace, epoch: int) -> np.uint64:
    """Return the fingerprint of the empty history."""
    fields = (namespace.adapter, namespace.adapter_version, namespace.salt)
    return _digest("root", *fields, epoch)


def mark(span: Span) -> np.uint64:
    """Return the number that a span adds from its first position on."""
    return _digest("span", span.kind, span.start, span.length, span.content)


def fingerprints(
    tokens: Sequence[int] | npt.NDArray[np.int64],
    *,
    namespace: Namespace,
    spans: Sequence[Span],
    epoch: int,
) -> Fingerprints:
    """Return one fingerprint per position of a request."""
    # sums wrap around on purpose: numpy is silent about that for arrays, not for scalars
    added = terms(np.asarray(tokens, dtype=np.int64))
    for span in spans:
        if 0 <= span.start < len(added):  # malformed spans are judged elsewhere
            added[span.start : span.start + 1] += mark(span)
    added[:1] += root(namespace, epoch)
    return np.cumsum(added, dtype=np.uint64)


@dataclass(frozen=True)
class Writer:
    """Who computed a slot: the request as it was then."""

    request: Request
    epoch: int
    step: int


@dataclass(frozen=True)
class Mismatch:
    """The first position of a read whose slot holds something else."""

    position: int
    slot: int
    block: int
    writer: Writer | None
    """None: never written."""
    written_as: int
    """The position that the writer put there."""


class BadTableError(Exception):
    """A table is too short or names pages outside the pool."""


class ShadowMemory:
    """Slots of one group: [num_blocks * block_size] fingerprints with their origin."""

    def __init__(self, *, num_blocks: int, block_size: int, page_size: int) -> None:
        slots = num_blocks * block_size
        self.block_size = block_size
        self._page_size = page_size
        self._pages = slots // page_size
        self.content = np.full(slots, POISON, np.uint64)
        self._origin = np.full(slots, -1, np.int32)
        self._position = np.full(slots, -1, np.int32)
        self._writers: list[Writer] = []
        self.compared = 0
        """Slots compared so far."""

    def slots(self, table: Sequence[int], start: int, stop: int) -> Slots:
        """Return the slots of positions [start, stop). Raises BadTableError."""
        pages = np.asarray(table, dtype=np.int64)
        positions = np.arange(start, stop, dtype=np.int64)
        index = positions // self._page_size
        if stop > len(pages) * self._page_size:
            raise BadTableError(
                f"{len(pages)} pages of {self._page_size} tokens cannot hold {stop} tokens"
            )
        used = pages[index]
        if len(used) and not 0 <= used.min() <= used.max() < self._pages:
            raise BadTableError(f"page ids {used.min()}..{used.max()} of {self._pages} pages")
        return used * self._page_size + positions % self._page_size

    def write(self, slots: Slots, start: int, content: Fingerprints, writer: Writer) -> None:
        """Record that `writer` computed positions from `start` on into `slots`."""
        self._writers.append(writer)
        self.content[slots] = content
        self._origin[slots] = len(self._writers) - 1
        self._position[slots] = np.arange(start, start + len(slots), dtype=np.int32)

    def copy(self, source: int, destination: int) -> None:
        """Copy a whole block with its origin."""
        size = self.block_size
        for column in (self.content, self._origin, self._position):
            column[destination * size : (destination + 1) * size] = column[
                source * size : (source + 1) * size
            ]

    def mismatch(self, slots: Slots, expected: Fingerprints, start: int = 0) -> Mismatch | None:
        """Return the first slot that does not hold what is expected at its position."""
        self.compared += len(slots)
        differs = self.content[slots] != expected
        if not differs.any():
            return None
        index = int(differs.argmax())
        return self.describe(int(slots[index]), start + index)

    def describe(self, slot: int, position: int) -> Mismatch:
        """Tell who wrote a slot that was read as `position`."""
        origin = int(self._origin[slot])
        writer = self._writers[origin] if origin >= 0 else None
        return Mismatch(position, slot, slot // self.block_size, writer, int(self._position[slot]))

    def writer_of_block(self, block: int) -> tuple[Writer, int, int] | None:
        """Return the last writer of a block's first slot and its positions there, if any."""
        here = slice(block * self.block_size, (block + 1) * self.block_size)
        origin = int(self._origin[here.start])
        if origin < 0:
            return None
        mine = self._position[here][self._origin[here] == origin]
        return self._writers[origin], int(mine.min()), int(mine.max())
