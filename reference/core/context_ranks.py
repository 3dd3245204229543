"""Ranks that share the tokens of each request, in turns: context parallel (Q4).

Token t lies on rank (t div interleave) mod count, there after the earlier ones of its rank. Block
tables are the same on all ranks: a block of B tokens has B div count slots on each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Move(NamedTuple):
    """A token that goes from one slot to another; slots are numbered in the order of a rank."""

    position: int
    source: tuple[int, int]
    """Rank and slot."""
    target: tuple[int, int]


@dataclass(frozen=True)
class ContextRanks:
    """How many ranks there are, and the tokens in a turn of each."""

    count: int = 1
    interleave: int = 1

    @property
    def round(self) -> int:
        """Tokens after which it is the first rank's turn again."""
        return self.count * self.interleave

    def owner(self, position: int) -> int:
        """Return the rank of a token."""
        return position // self.interleave % self.count

    def slot(self, position: int) -> int:
        """Return the place of a token among those of its rank."""
        return position // self.round * self.interleave + position % self.interleave

    def held(self, length: int, rank: int = 0) -> int:
        """Return how many of the first `length` tokens a rank has; none has more than rank 0."""
        rest = length % self.round - rank * self.interleave
        return length // self.round * self.interleave + min(max(rest, 0), self.interleave)


ALONE = ContextRanks()
"""One rank with all tokens."""


def moves(length: int, old: ContextRanks, new: ContextRanks) -> Iterator[Move]:
    """Yield where each of `length` tokens goes when the ranks change; each is moved once (Q4)."""
    for position in range(length):
        source = old.owner(position), old.slot(position)
        yield Move(position, source, (new.owner(position), new.slot(position)))
