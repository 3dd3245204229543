"""The symbolic language with scores of computed tokens, as in a real model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from zlib import crc32

from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.model.interface import Sample, Work
from kvproof.reference.model.symbolic import SymbolicModel
from kvproof.reference.server.language.language import Abilities, Prepared, SamplingOptions, Score
from kvproof.reference.server.language.symbolic_text import SymbolicText


def chance(before: Sequence[int], token: int) -> float:
    return -crc32(repr((*before, token)).encode()) / 2**32


class Broken(RuntimeError):
    """A device that fails."""


class InstrumentedModel(SymbolicModel):
    """Records its work and its output; fails once on request."""

    def __init__(self, config: CacheConfig, *, vocabulary: int) -> None:
        super().__init__(config, vocabulary=vocabulary)
        self.first: dict[str, int] = {}
        """Request -> where its first step began: everything before was in the cache."""
        self.positions: dict[str, set[int]] = {}
        self.said: dict[str, tuple[int, ...]] = {}
        """Answers so far, without tokens of requests that were preempted meanwhile."""
        self.resumed: set[str] = set()
        self.launched: list[list[str]] = []
        """Requests of each step since the machine last looked."""
        self.failed: set[str] = set()
        """Requests of the steps in flight when one raised."""
        self.breaks = ""
        self.broke = ""
        self._in_flight: dict[int, list[str]] = {}

    def launch(self, step: int, works: Sequence[Work]) -> None:
        """See `Model`."""
        self._in_flight[step] = [work.request_id for work in works]
        self.launched.append(self._in_flight[step])
        for work in works:
            self._record(work)
        self._fail("launch")
        super().launch(step, works)

    def _record(self, work: Work) -> None:
        self.first.setdefault(work.request_id, work.start)
        computed = self.positions.setdefault(work.request_id, set())
        if computed.intersection(range(work.start, work.stop)):
            self.resumed.add(work.request_id)
        computed.update(range(work.start, work.stop))

    def finish(self, step: int) -> Mapping[str, Sample]:
        self._fail("finish")
        self._in_flight.pop(step, None)
        return super().finish(step)

    def _fail(self, verb: str) -> None:
        if self.breaks == verb:
            self.breaks, self.broke = "", verb
            self.failed.update(*self._in_flight.values())
            self._in_flight.clear()
            raise Broken(f"the device is lost in {verb}")


class Scored(SymbolicText):
    def __init__(self, config: CacheConfig, *, max_len: int, answers: int) -> None:
        super().__init__(config, max_len=max_len, answers=answers)
        self.model: InstrumentedModel = InstrumentedModel(config, vocabulary=answers)
        self.abilities = Abilities(top_logprobs=5, prompt_logprobs=True, images=True)
        self.begun: list[str] = []
        """Requests, in the order in which they began."""
        self.kept: dict[str, tuple[Prepared, SamplingOptions]] = {}
        self._reported: dict[str, int] = {}

    def begin(self, request_id: str, prepared: Prepared, sampling: SamplingOptions) -> None:
        """See `Language`."""
        self.begun.append(request_id)
        self.kept[request_id] = prepared, sampling
        self._reported[request_id] = 0

    def scores(self, request_id: str, tokens: Sequence[int]) -> Sequence[Score]:
        prepared, sampling = self.kept[request_id]
        said, first = self.model.said[request_id], self._reported[request_id]
        self._reported[request_id] = stop = first + len(tokens)
        every = [*prepared.tokens, *said[:stop]]
        begin = len(prepared.tokens) + first
        return [self._chance(every, at, sampling) for at in range(begin, len(every))]

    def prompt_scores(self, request_id: str) -> Sequence[Score]:
        prepared, sampling = self.kept[request_id]
        known = {at + 1 for at in self.model.positions[request_id]}
        places = sorted(known & set(range(1, len(prepared.tokens))))
        return [self._chance(prepared.tokens, at, sampling) for at in places]

    def _chance(self, tokens: Sequence[int], at: int, sampling: SamplingOptions) -> Score:
        best = [(other, -float(other)) for other in range(sampling.top_logprobs or 0)]
        return Score(tokens[at], chance(tokens[:at], tokens[at]), tuple(best))

    def end(self, request_id: str) -> None:
        """See `Language`."""
        self.kept.pop(request_id, None)
        self._reported.pop(request_id, None)
