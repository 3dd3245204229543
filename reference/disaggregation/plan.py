"""Pieces that a decoding worker takes from prefilling ones, each slot from one of them (D1, Q4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from kvproof.reference.disaggregation.workers import Cache, Workers


class Piece(NamedTuple):
    """Slots of one head that lie side by side on both sides."""

    source: int
    """Rank of the prefilling worker."""
    heads: tuple[int, int]
    """Its index of the head, and that of the decoding worker."""
    source_at: tuple[int, int]
    """Block and first offset."""
    target_at: tuple[int, int]
    tokens: int


class Plan:
    """The moves from one engine's workers to another's."""

    def __init__(self, prefill: Workers, decode: Workers) -> None:
        """Raises ValueError for two models."""
        if prefill.heads != decode.heads:
            raise ValueError(f"{prefill.heads} and {decode.heads} heads are of two models")
        self._prefill, self._decode = prefill, decode

    def pieces(
        self, rank: int, tables: tuple[Sequence[int], Sequence[int]], start: int, end: int
    ) -> Iterator[Piece]:
        """Yield what a decoding worker takes of the positions from `start` to `end`.

        `tables`: the prompt's blocks on the prefilling side, and on the decoding one.
        """
        prefill, decode = self._prefill, self._decode
        mine = [p for p in range(start, end) if decode.holds(rank, p)]
        for _, run in groupby(mine, lambda p: (p // prefill.block_size, p // decode.block_size)):
            first, *others = run
            at = prefill.slot(tables[0], first), decode.slot(tables[1], first)
            for index, head in enumerate(decode.heads_of(rank)):
                source = self.source(rank, head, first)
                theirs = prefill.heads_of(source).index(head)
                yield Piece(source, (theirs, index), *at, 1 + len(others))

    def source(self, rank: int, head: int, position: int) -> int:
        """Return the prefilling worker that gives a slot; those with equal ones share the work."""
        ranks = range(self._prefill.count)
        having = [
            each
            for each in ranks
            if head in self._prefill.heads_of(each) and self._prefill.holds(each, position)
        ]
        return having[rank % len(having)]

    def readers(self, source: int) -> set[int]:
        """Return the decoding workers that may take something from a prefilling one.

        A worker without readers waits for the first of all.
        """
        found = {
            rank
            for rank in range(self._decode.count)
            for head in self._decode.heads_of(rank)
            for position in self._samples(rank)
            if self.source(rank, head, position) == source
        }
        return found or {0}

    def _samples(self, rank: int) -> Iterator[int]:
        """Yield a position of each pair of blocks that can meet."""
        size = min(self._prefill.block_size, self._decode.block_size)
        longest = max(self._prefill.block_size, self._decode.block_size)
        round_ = longest * self._prefill.context * self._decode.context
        yield from (p for p in range(0, round_, size) if self._decode.holds(rank, p))


def copy(piece: Piece, source: Cache, target: Cache) -> None:
    """Copy a piece in all layers."""
    (block, first), (to, at) = piece.source_at, piece.target_at
    theirs, mine = piece.heads
    taken = source[:, block, theirs, first : first + piece.tokens]
    target[:, to, mine, at : at + piece.tokens] = taken
