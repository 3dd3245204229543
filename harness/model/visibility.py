"""Kinds of groups: which positions a layer reads, and which blocks of a table that keeps (X1, X4).

One class is one kind: full attention, a sliding window, local chunks, recurrent state. A new kind
is a new class here and an entry of KINDS; no other module asks for a kind's name to learn which
positions it reads. The module needs only the standard library of Python 3.10.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, TypeAlias

Kind: TypeAlias = Literal["full", "window", "chunk", "state"]
"""Name of a kind of group in configurations; a test compares it with KINDS."""


@dataclass(frozen=True)
class Visibility(ABC):
    """The rule of one kind of group."""

    size: int = 0
    """Tokens of the window, the own position included, or of a chunk; 0 for other kinds."""

    kind: ClassVar[str]
    """The kind's name in configurations, op logs and reports."""
    by_position: ClassVar[bool] = True
    """The group's table has an entry for each block of positions, and a slot for each of them."""
    reads_all: ClassVar[bool] = False
    """Every position reads all before it: a block is useless without the block before it."""
    moves: ClassVar[bool] = False
    """Its first position read moves on with every token, so old blocks may leave holes."""
    sized: ClassVar[bool] = False
    """A group of this kind needs a size."""

    @abstractmethod
    def first_read(self, position: int) -> int:
        """Return the first position that computing `position` reads."""

    def first_block(self, position: int, block_size: int) -> int:
        """Return the first entry of a table that computing `position` reads."""
        return self.first_read(position) // block_size

    def read_by(self, start: int, stop: int) -> range:
        """Return the positions that a step over [start, stop) reads, its own included."""
        return range(self.first_read(start), stop)

    def written_by(self, start: int, stop: int) -> range:
        """Return the positions whose place a step over [start, stop) writes."""
        return range(start, stop)

    def outside(self, position: int, unit: int) -> int:
        """Return how many tokens, in whole units, `position` and all after it do not read."""
        return self.first_read(position) // unit * unit

    def hit_reads(self, stop: int, unit: int) -> bool:
        """Tell whether a hit, which ends a unit, may read the block that ends at `stop`."""
        return True

    def begins_inside(self, block_size: int) -> bool:
        """Tell whether the range that positions read together may begin inside a block."""
        return False

    def __str__(self) -> str:
        """Return the kind with its size."""
        return f"{self.kind} {self.size or ''}".strip()


class FullAttention(Visibility):
    """Every position before the own one."""

    kind = "full"
    reads_all = True

    def first_read(self, position: int) -> int:
        """Return the beginning."""
        return 0


class SlidingWindow(Visibility):
    """The last `size` positions, the own one included."""

    kind = "window"
    moves = True
    sized = True

    def first_read(self, position: int) -> int:
        """Return the beginning of the window."""
        return max(0, position - self.size + 1)

    def hit_reads(self, stop: int, unit: int) -> bool:
        """Tell whether the window of the next end of a unit reaches back into the block."""
        return self.first_read(-(-stop // unit) * unit) < stop


class LocalChunks(Visibility):
    """The positions of the own chunk: chunks of `size` tokens, counted from the beginning."""

    kind = "chunk"
    sized = True

    def first_read(self, position: int) -> int:
        """Return the beginning of the chunk."""
        return position // self.size * self.size

    def begins_inside(self, block_size: int) -> bool:
        """Tell whether the size is no multiple of the block size."""
        return self.size % block_size != 0


class RecurrentState(Visibility):
    """One state, which has seen all positions up to its own: it has no slots of positions."""

    kind = "state"
    by_position = False

    def first_read(self, position: int) -> int:
        """Return the own position: an answer depends on nothing but the state after it."""
        return position

    def first_block(self, position: int, block_size: int) -> int:
        """Return the entry with the state after the positions before."""
        return max(0, position - 1) // block_size

    def read_by(self, start: int, stop: int) -> range:
        """Return the position before the step: the state after it is read."""
        return range(max(0, start - 1), start)

    def written_by(self, start: int, stop: int) -> range:
        """Return the last position of the step: the state after it is written."""
        return range(max(start, stop - 1), stop)


KINDS: Mapping[str, type[Visibility]] = {
    each.kind: each for each in (FullAttention, SlidingWindow, LocalChunks, RecurrentState)
}
"""Name of a kind -> its rule."""


@lru_cache(maxsize=1_024)
def visibility(kind: str, size: int) -> Visibility:
    """Return the rule of a group. Raises KeyError for an unknown kind."""
    return KINDS[kind](size)
