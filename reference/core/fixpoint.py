"""One length that is valid for every group (X1-X3), and never inside a media span (M2).

A group, like any other limit, is a *floor*: it maps a length to the largest length that is valid
for it and not above. The lengths valid for one group are a set that holds 0, so its floor never
rises, keeps the order of lengths, and leaves valid lengths alone.

`longest` lowers the limit by one floor after the other until all leave it alone. Let L be the
longest length valid for all. No floor f passes below it: from length >= L follows f(length) >=
f(L) = L. What all floors leave alone is valid for all, hence at most L. So the end is L, for any
number, mix and order of floors, and it is reached because every round but the last lowers an
integer that is at least 0.

Lengths are tokens. Floors are cheap closures made for one request; those over residency look at
the bytes of the blocks in question, not at the whole request.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from kvproof.reference.core.attention_groups import Kind
from kvproof.reference.core.identity import Span

Floor: TypeAlias = Callable[[int], int]
"""Largest valid length that is not above the given one, in tokens; 0 is always valid."""


def longest(limit: int, floors: Sequence[Floor]) -> int:
    """Return the longest length <= `limit` that every floor leaves alone (X2)."""
    length = limit
    while True:
        before = length
        for floor in floors:
            length = floor(length)
        if length == before:
            return length


class Reduction(NamedTuple):
    """One floor lowered the length; reductions add up to what the limit lost (V3)."""

    which: int
    """Index of the floor among those given."""
    before: int
    after: int


def reductions(limit: int, floors: Sequence[Floor]) -> Iterator[Reduction]:
    """Yield what `longest` goes through, in order."""
    before = limit + 1
    length = limit
    while length != before:
        before = length
        for which, floor in enumerate(floors):
            lower = floor(length)
            if lower != length:
                yield Reduction(which, length, lower)
            length = lower


# --- what a group must still have ---


def first_visible(kind: Kind, size: int, length: int) -> int:
    """Return the first position that computing position `length` sees; `length` if it sees none.

    `size` is the window, the own position included, or the chunk. A state sees no positions.
    """
    if kind == "full":
        return 0
    if kind == "window":
        return max(0, length - size + 1)
    return length // size * size if kind == "chunk" else length


def blocks_needed(kind: Kind, size: int, length: int, *, block_size: int) -> range:
    """Return the blocks that must be there for a hit of `length`, whole blocks (X1)."""
    return range(first_visible(kind, size, length) // block_size, length // block_size)


# --- floors ---


def aligned(unit: int) -> Floor:
    """Only whole units are valid; the unit of several groups is the lcm of their blocks."""
    return lambda length: length // unit * unit


def leading(num_blocks: int, *, block_size: int) -> Floor:
    """Full attention of which the first `num_blocks` blocks are there."""
    most = num_blocks * block_size
    return lambda length: most if length > most else length // block_size * block_size


def resident(kind: Kind, present: bytes | bytearray, *, size: int = 0, block_size: int) -> Floor:
    """Full attention, window or chunk over residency with holes.

    `present` has one byte for each block up to the limit, zero where the block is gone.
    """
    if kind == "full":
        hole = present.find(0)
        return leading(hole if hole >= 0 else len(present), block_size=block_size)
    if kind == "state":
        raise ValueError("a state has no blocks by position; use checkpoints()")

    def floor(length: int) -> int:
        stop = min(length // block_size, len(present))
        while True:
            first = first_visible(kind, size, stop * block_size) // block_size
            hole = present.rfind(0, first, stop)
            if hole < 0:
                return stop * block_size
            stop = hole  # any longer one sees this hole too: what is visible never grows backwards

    return floor


def checkpoints(positions: Sequence[int]) -> Floor:
    """Recurrent state with a checkpoint after so many tokens each; `positions` ascend (S1)."""

    def floor(length: int) -> int:
        index = bisect_right(positions, length)
        return positions[index - 1] if index else 0

    return floor


def outside(spans: Sequence[Span]) -> Floor:
    """Never strictly inside a span (M2). Spans are in order and do not overlap."""
    starts = [span.start for span in spans]
    stops = [span.start + span.length for span in spans]

    def floor(length: int) -> int:
        index = bisect_left(starts, length) - 1
        return starts[index] if index >= 0 and length < stops[index] else length

    return floor


def ahead(floor: Floor, *, unit: int, limit: int) -> Floor:
    """Draft group (X3): beside the length itself, one unit more must be valid, up to `limit`.

    The draft model runs one position ahead, so the last unit of what matched is computed again.
    Several draft groups cost one unit together, because each looks ahead of the same length.
    A `state` group is never wrapped: its checkpoint stands at the length itself.
    """

    def shifted(length: int) -> int:
        return max(0, floor(min(length + unit, limit)) - unit)

    return lambda length: longest(length, (floor, shifted))
