"""One probe with a trace: its replay, and situations of neighbours that are brought about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvproof.suites.framework.property import Property
from kvproof.suites.probe import check as about
from kvproof.suites.probe.check import Verdict
from kvproof.suites.probe.depths import fitting, words
from kvproof.suites.probe.parity import Check
from kvproof.suites.probe.session import Session
from kvproof.suites.probe.traffic.delays import judge_delays
from kvproof.suites.probe.traffic.neighbours import LEFT, NAMED, TAKEN, leaving, namesakes
from kvproof.suites.probe.traffic.replay import TraceReplay, judge_replay
from kvproof.suites.probe.trials import controls_at_once

_LONG = (8_000, 4_000, 1_000)
"""Tokens of a long neighbour, the first that the server takes."""
_IN_CHUNKS = 32
"""Chunks of a long neighbour at least, where their size is known."""


@dataclass
class TraceSession(Session):
    """Judges answers and times of requests among others."""

    replay: TraceReplay | None = None
    checks: ClassVar[Sequence[Property]] = about.TRACED

    def _counts(self) -> Sequence[Verdict]:
        return ()  # they are judged by a probe without a trace

    def _guided(self) -> Iterator[Verdict]:
        judge = self._checker()
        yield from self._prepared(judge)
        lengths = self._lengths()[-3:]
        yield judge.judge(Check(about.LEAVING, leaving, lengths, (LEFT, TAKEN), controls_at_once))
        if self.facts.adapters or judge.context.salts:
            yield judge.judge(Check(about.NAMES, namesakes, lengths, (NAMED,), controls_at_once))
        else:
            why = "the server lists no adapter, and salts were not seen to keep prompts apart"
            yield Verdict(about.NAMES, "unsupported", why)
        if self.replay is not None:
            wanted = (max(_IN_CHUNKS * self.replay.chunk, _LONG[0]), *_LONG)
            long = next(iter(fitting(self.asker, wanted)), self.facts.longest // 2)
            yield judge_delays(
                judge.context, words(self.asker, long), self.progress, chunk=self.replay.chunk
            )
            yield judge_replay(judge.context, self.replay, self.progress, allowed=judge.allowed)
