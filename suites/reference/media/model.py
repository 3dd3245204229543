"""A request with media, position by position, with the rules spelled out.

No sorted spans, no searches: every question is answered by looking at single positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from kvproof.reference.core import media_spans as media
from kvproof.reference.core.identity import Span
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.media import properties as seen


class Walk:
    """The newest request, and how often each of its spans was encoded."""

    def __init__(
        self, model: Model, spans: tuple[Span, ...], *, hit: int, turn: int, coverage: Coverage
    ) -> None:
        self._model, self._spans, self._hit, self._turn = model, spans, hit, turn
        self._computed = hit
        self._encoded: list[int] = [0] * len(spans)
        self._check, self._event = coverage.check, coverage.event

    def step(self, budget: int) -> str:
        """Schedule the next step, of about `budget` tokens."""
        start = self._computed
        if start >= len(self._model.entries):
            return "nothing to compute"
        wanted = self._wanted(budget)
        stop: int = media.chunk_stop(start, wanted, self._spans)
        self._judge_stop(wanted, stop)
        self._encode(stop)
        self._computed = stop
        return f"{start}..{stop}"

    def _wanted(self, budget: int) -> int:
        limit: int = media.chunk_limit(budget, self._spans, turn=self._turn)
        allowed = self._model.limit(budget, self._turn)
        self._check(
            "the_chunk_limit_grows_for_this_turn_only",
            limit == allowed,
            lambda: (
                f"a step may take {limit} tokens, not {allowed}, in the turn from {self._turn}: "
                f"{self._model.runs}"
            ),
        )
        old = [run for run in self._model.runs if run.start < self._turn and run.length > limit]
        self._event(seen.OLD_TURN, old)
        return min(self._computed + limit, len(self._model.entries))

    def _judge_stop(self, wanted: int, stop: int) -> None:
        start, model = self._computed, self._model
        self._check(
            "chunks_never_split_a_span",
            start < stop <= len(model.entries) and model.may_end(stop),
            lambda: f"the step from {start} ends at {stop}, inside one of {model.runs}",
        )
        best = model.stop(start, wanted)
        self._check(
            "chunks_are_as_long_as_they_may_be",
            stop == best,
            lambda: f"the step from {start} to {wanted} ends at {stop}, not {best}: {model.runs}",
        )
        self._event(seen.MOVED_BACK, stop < wanted)
        self._event(seen.GROWN, stop > wanted)

    def _encode(self, stop: int) -> None:
        start = self._computed
        named: tuple[int, ...] = media.to_encode(self._hit, start, stop, self._spans)
        touched = {place for _, place in self._model.entries[start:stop] if place}
        expected = [
            index
            for index, run in enumerate(self._model.runs)
            if run in touched and run.kind != "embeds" and not self._encoded[index]
        ]
        self._check(
            "each_missed_span_is_encoded_once",
            list(named) == expected,
            lambda: (
                f"the step {start}..{stop} after a hit of {self._hit} encodes spans {named}, "
                f"not {expected}, of {self._model.runs}"
            ),
        )
        for index in expected:
            self._encoded[index] += 1
        self._event(seen.MISSED, expected)
        self._event(seen.COVERED, any(run.stop <= self._hit for run in self._model.runs))


PLACEHOLDER = 9
"""Token of every position that stands for media."""


class Thing(NamedTuple):
    """One media item of a request; an image has one place, a video one for each frame."""

    kind: str
    places: tuple[tuple[int, int], ...]
    contents: tuple[int | None, ...]
    """Content of each place; None: an embedding that the mask leaves out."""


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
        longer = range(wanted + 1, len(self.entries) + 1)
        return next(length for length in longer if self.may_end(length))

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
