"""The steps of a request: where each ends, and which encoders run."""

from __future__ import annotations

from kvproof.reference.core import media_spans as media
from kvproof.reference.core.identity import Span
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.media import properties as seen
from kvproof.suites.reference.media.model import Model


class Walk:
    """The newest request, and how often each of its spans was encoded."""

    def __init__(
        self,
        model: Model,
        spans: tuple[Span, ...],
        *,
        hit: int,
        turn: int,
        coverage: Coverage,
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
