"""A judged evaluation: the facts that every benchmark gives to the records and the reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from kvproof.eval.run.records import ServerDied
from kvproof.eval.verdict.measured import Measured
from kvproof.harness.errors import Exit, worst
from kvproof.harness.records.eval_events import (
    EvalConcluded,
    EvalFigure,
    EvalMetric,
    EvalStarted,
    EvalTable,
)
from kvproof.harness.records.events import AnyEvent, PropertyVerdict, TargetStarted

Verdict: TypeAlias = Literal["pass", "inconclusive", "fail"]

EXITS: dict[Verdict, Exit] = {
    "pass": Exit.PASS,
    "inconclusive": Exit.INCONCLUSIVE,
    "fail": Exit.FAILURE,
}

_LOG_LINES = 40


def worst_verdict(found: Iterable[Verdict], *, least: Verdict = "pass") -> Verdict:
    """The verdict of a whole that has these parts; inconclusive without any, `least` at best."""
    codes = [EXITS[each] for each in found] or [Exit.INCONCLUSIVE]
    code = worst([*codes, EXITS[least]])
    return next(word for word, exit_ in EXITS.items() if exit_ == code)


class Table(NamedTuple):
    """A heading, column names, and cells; the first `words` columns are text."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int
    note: str = ""
    narrow: tuple[int, ...] = ()
    """Columns on a terminal; none: only files have the table."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one configuration, by one pass, load or comparison of all its answers."""

    target: str
    part: str
    """Pass or load; empty if the benchmark has one verdict for a configuration."""
    sentence: str
    """The claim that is judged."""
    verdict: Verdict
    reasons: tuple[str, ...]
    pairs: int
    figures: dict[EvalMetric, float] = {}


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts, figures and tables of one evaluation, complete or not."""

    benchmark: str
    title: str
    lines: tuple[str, ...]
    servers: tuple[Measured, ...]
    deaths: tuple[ServerDied, ...] = ()
    """Servers that ended, and whose answers are still missing."""
    revived: tuple[str, ...] = ()
    """Configurations whose server ended, and that were made good since."""
    rows: tuple[Judged, ...]
    tables: tuple[Table, ...]
    doubts: tuple[str, ...] = ()
    verdict: Verdict
    sentence: str
    summary: object
    """All figures, for other programs."""
    file: str = "comparison.json"

    def json(self) -> bytes:
        """All figures as JSON."""
        return msgspec.json.format(msgspec.json.encode(self.summary))

    def events(self) -> Iterator[AnyEvent]:
        """Records of all that; those of an earlier part of the run are replaced."""
        yield EvalStarted(benchmark=self.benchmark, title=self.title, lines=self.lines)
        yield from map(_started, self.servers)
        for each in self.rows:
            yield from self._row(each)
        logs = [_log(death.configuration, death.log) for death in self.deaths]
        logs += [_log(name, "") for name in self.revived]
        yield from (self._server(death.configuration, death.message) for death in self.deaths)
        yield from (self._server(name, "") for name in self.revived)
        for table in (*self.tables, *logs):
            yield EvalTable(benchmark=self.benchmark, **table._asdict())
        yield EvalConcluded(
            benchmark=self.benchmark,
            verdict=self.verdict,
            sentence=self.sentence,
            doubts=self.doubts,
        )

    def _row(self, each: Judged) -> Iterator[AnyEvent]:
        name = "_".join([self.benchmark, *each.part.split()])
        yield _verdict(
            each.target, name, each.sentence, each.verdict, "; ".join(each.reasons), each.pairs
        )
        for metric, value in each.figures.items():
            yield EvalFigure(target=each.target, property=name, metric=metric, value=value)

    def _server(self, name: str, message: str) -> PropertyVerdict:
        sentence = "its server answers until it is stopped"
        verdict: Verdict = "fail" if message else "pass"
        return _verdict(name, f"{self.benchmark}_server", sentence, verdict, message, 0)


def _log(name: str, log: str) -> Table:
    lines = tuple((line,) for line in log.splitlines()[-_LOG_LINES:])
    return Table(f"What the server of {name} wrote last", ("line",), lines, 1, narrow=(0,))


def _verdict(
    target: str, name: str, sentence: str, verdict: Verdict, reason: str, checks: int
) -> PropertyVerdict:
    return PropertyVerdict(
        target=target,
        suite="evaluation",
        property=name,
        section="E",
        rules=[],
        sentence=sentence,
        verdict=verdict,
        reason=reason,
        checks=checks,
    )


def _started(server: Measured) -> TargetStarted:
    return TargetStarted(
        target=server.configuration,
        engine=server.engine or "an engine",
        version=server.version,
        profile={
            "prefix_cache": server.prefix_cache,
            **server.settings,
            "model": server.model,
            "started_as": server.started,
        },
        isolation="server",
    )
