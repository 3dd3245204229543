"""A request with media, position by position, with the rules spelled out.

No sorted spans, no searches: every question is answered by looking at single positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

PLACEHOLDER = 9
"""Token of every position that stands for media."""


class Thing(NamedTuple):
    """One media item of a request; an image has one place, a video one for each frame."""

    kind: str
    places: tuple[tuple[int, int], ...]
    contents: tuple[int | None, ...]
    """Their content; None: an embedding that the mask leaves out."""


class PlaceholderRun(NamedTuple):
    """One run of placeholders."""

    kind: str
    start: int
    length: int
    content: int

    @property
    def stop(self) -> int:
        return self.start + self.length


Entry: TypeAlias = tuple[int, PlaceholderRun | None]
"""Token and, if the position stands for media, the content."""


def places(things: list[Thing]) -> Iterator[PlaceholderRun]:
    for kind, where, contents in things:
        for (start, length), content in zip(where, contents, strict=True):
            if content is not None:
                yield PlaceholderRun(kind, start, length, content)


class Model:
    """One well-formed request."""

    def __init__(self, total: int, text: int, things: list[Thing]) -> None:
        self.entries: list[Entry] = [(text, None)] * total
        for place in places(things):
            for position in range(place.start, place.stop):
                self.entries[position] = (PLACEHOLDER, place)

    @property
    def tokens(self) -> list[int]:
        """Return the token ids."""
        return [token for token, _ in self.entries]

    @property
    def runs(self) -> list[PlaceholderRun]:
        found = dict.fromkeys(place for _, place in self.entries if place)
        return list(found)

    def may_end(self, length: int) -> bool:
        if length in (0, len(self.entries)):
            return True
        before, after = self.entries[length - 1][1], self.entries[length][1]
        return before is None or before != after

    def hit(self, matched: int, block_size: int) -> int:
        """Return the longest whole number of blocks within `matched` where a hit may end (M2)."""
        ends = range(0, matched + 1, block_size)
        return max(length for length in ends if self.may_end(length))

    def stop(self, start: int, wanted: int) -> int:
        """Return the last end up to `wanted`, or else the first one after it (M3)."""
        ends = [length for length in range(start + 1, wanted + 1) if self.may_end(length)]
        if ends:
            return ends[-1]
        behind = range(wanted + 1, len(self.entries) + 1)
        return next(length for length in behind if self.may_end(length))

    def limit(self, budget: int, turn: int) -> int:
        """Return the token limit of a step: the budget or the longest run that begins in it."""
        return max([budget, *(run.length for run in self.runs if run.start >= turn)])

    def shared_blocks(self, other: Model, block_size: int) -> int:
        """Count the full blocks up to which every position is equal (H1)."""
        shared = 0
        least = min(len(self.entries), len(other.entries)) // block_size
        while shared < least and self.block(shared, block_size) == other.block(shared, block_size):
            shared += 1
        return shared

    def block(self, index: int, block_size: int) -> list[Entry]:
        """Return the entries of one block."""
        return self.entries[index * block_size : (index + 1) * block_size]


def is_malformed(total: int, runs: list[PlaceholderRun]) -> bool:
    covered = [position for run in runs for position in range(run.start, run.stop)]
    outside = any(not 0 <= position < total for position in covered)
    return outside or len(set(covered)) < len(covered) or any(run.length < 1 for run in runs)
