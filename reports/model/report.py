"""The content of a report, computed once from a run; the renderers only lay it out."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from kvproof.harness.records.base import Event
from kvproof.harness.records.bench_events import GrowthPoint
from kvproof.harness.records.events import (
    BenchSample,
    BenchSummary,
    Checked,
    Ended,
    Exercised,
    Failure,
    HarnessFault,
    Optimum,
    PropertyVerdict,
    Replayed,
    Skipped,
    TargetFailed,
    TargetStarted,
    Threshold,
)
from kvproof.harness.records.run_directory import Manifest, Run
from kvproof.reports.values.headline import RANKS, leading, others
from kvproof.reports.values.text import listed
from kvproof.reports.values.types import (
    MAIN_SUITE,
    OUTCOMES,
    BenchGroup,
    Coverage,
    Finding,
    Outcome,
    Row,
    Section,
)

E = TypeVar("E", bound=Event)
Item = TypeVar("Item")


@dataclass(frozen=True)
class Report:
    """A run, sorted for reading. Every string is safe to show."""

    run: Run
    targets: tuple[str, ...]
    sections: tuple[Section, ...]
    findings: tuple[Finding, ...]
    outcome: Outcome = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "outcome", _outcome(self))

    @property
    def manifest(self) -> Manifest:
        """The run's options and environment."""
        return self.run.manifest

    @property
    def command(self) -> str:
        """The command line that repeats the run, with the seed that it drew."""
        command, seed = self.manifest.command, self.manifest.seed
        given = any(word.startswith("--seed") for word in command)
        drawn = self.manifest.verb == "fuzz" and seed is not None and not given
        return shlex.join([*command, "--seed", str(seed)] if drawn else command)

    @cached_property
    def seconds(self) -> float:
        """Length of the run, or the time to its last event if it was killed."""
        ended = _closing(self.run)
        last = max((event.at for event in self.run.events), default=0.0)
        return max(ended.seconds, last) if ended else last

    def of(self, kind: type[E]) -> list[E]:
        """Events of one type, in order."""
        return [event for event in self.run.events if isinstance(event, kind)]

    @cached_property
    def started(self) -> dict[str, TargetStarted]:
        """Target -> its last start."""
        return {event.target: event for event in self.of(TargetStarted)}

    @property
    def judged(self) -> tuple[str, ...]:
        """Targets that have a column in the matrix."""
        named = {target for row in self.rows for target in row.cells}
        return tuple(target for target in self.targets if target in named)

    @property
    def rows(self) -> list[Row]:
        """All properties, in the order of the sections."""
        return [row for section in self.sections for row in section.rows]

    @property
    def failures(self) -> list[Finding]:
        """Failures that are not expected."""
        return [finding for finding in self.findings if not finding.expected]

    @property
    def expected(self) -> list[Finding]:
        """Findings that the expected-failures file names."""
        return [finding for finding in self.findings if finding.expected]

    def finding(self, target: str, name: str) -> Finding | None:
        """The first failure of a property on a target."""
        return self._first_findings.get((target, name))

    @cached_property
    def _first_findings(self) -> dict[tuple[str, str], Finding]:
        return {(f.failure.target, f.failure.property): f for f in reversed(self.findings)}

    def verdicts(self, *kinds: str) -> list[PropertyVerdict]:
        """Verdicts of these kinds in the whole matrix."""
        return [cell for row in self.rows for cell in row.cells.values() if cell.verdict in kinds]

    @cached_property
    def deaths(self) -> list[TargetFailed]:
        """Targets that died, hung or gave invalid answers."""
        return self.of(TargetFailed)

    @cached_property
    def shortest_deaths(self) -> list[TargetFailed]:
        """One of each kind of death and message: that with the shortest history."""
        kinds = grouped(self.deaths, lambda event: (event.target, event.kind, event.message))
        return [min(same, key=lambda event: len(event.history)) for same in kinds.values()]

    def cells(self, target: str, unsupported: bool) -> list[Row]:  # noqa: FBT001 - templates pass it
        """The rows with a verdict on a target, those unsupported there or all others."""
        return [
            row
            for row in self.rows
            if target in row.cells and (row.cells[target].verdict == "unsupported") is unsupported
        ]

    def script_command(self, failure: Failure) -> str:
        """The command that reproduces a failure, with the interpreter of the run, in any folder."""
        python = self.manifest.interpreter or "python"
        return shlex.join([python, self._path(failure.script_path)])

    def replay_command(self, failure: Failure) -> str:
        """The command that runs a failure again; empty for requests to a server."""
        if self.manifest.verb == "probe":
            return ""
        words = ["kvproof", "replay", self._path(failure.op_log), "--target", failure.target]
        command = shlex.join(words)
        folder = self.manifest.folder if ":" in failure.target else ""
        return f"PYTHONPATH={shlex.quote(folder)} {command}" if folder else command

    def _path(self, name: str) -> str:
        """A file of the run, in any folder; runs up to 0.14 did not record their interpreter."""
        folder = self.run.directory
        return str((folder.absolute() if self.manifest.interpreter else folder) / name)

    def sentence_of(self, name: str) -> str:
        """The sentence of a property; empty if the run did not get to its verdict."""
        return next((row.sentence for row in self.rows if row.property == name), "")

    @cached_property
    def faults(self) -> list[HarnessFault]:
        """Failures of kvproof itself."""
        return self.of(HarnessFault)

    @cached_property
    def skipped(self) -> list[Skipped]:
        """Component suites that did not run."""
        return self.of(Skipped)

    @cached_property
    def thresholds(self) -> list[Threshold]:
        """The gate's limits."""
        return self.of(Threshold)

    @cached_property
    def checked(self) -> list[Checked]:
        """Workloads repeated under the shadow memory."""
        return self.of(Checked)

    @cached_property
    def replayed(self) -> list[Replayed]:
        """Replayed op logs."""
        return self.of(Replayed)

    @cached_property
    def coverage(self) -> list[Coverage]:
        """One entry per exercised target."""
        groups = grouped(self.of(Exercised), lambda event: event.target)
        return [_coverage(target, events) for target, events in groups.items()]

    @cached_property
    def exercised(self) -> list[Coverage]:
        """One entry per exercised target and suite."""
        groups = grouped(self.of(Exercised), lambda event: (event.target, event.suite))
        return [_coverage(target, events) for (target, _), events in groups.items()]

    @cached_property
    def bench(self) -> list[BenchGroup]:
        """One entry per workload, size and case."""
        groups = grouped(
            self.of(BenchSummary),
            lambda e: (e.workload, e.groups, e.block_size, e.num_blocks, e.case),
        )
        return [_bench_group(events) for events in groups.values()]

    @cached_property
    def unsummarised(self) -> int:
        """Repetitions of an unfinished case in a run that was cut."""
        done = {_bench_key(event) for event in self.of(BenchSummary)}
        return sum(_bench_key(event) not in done for event in self.of(BenchSample))

    @cached_property
    def optimum(self) -> list[list[Optimum]]:
        """Best possible hit rates: one list per workload, block size and rule."""
        groups = grouped(self.of(Optimum), lambda e: (e.workload, e.block_size, e.rule))
        return list(groups.values())

    @cached_property
    def growth(self) -> dict[int, list[GrowthPoint]]:
        """Block size -> points of all targets."""
        return grouped(self.of(GrowthPoint), lambda event: event.block_size)


def grouped(events: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    """Events by key, in order of first appearance."""
    groups: dict[Any, list[Item]] = {}
    for event in events:
        groups.setdefault(key(event), []).append(event)
    return groups


def _coverage(target: str, events: Sequence[Exercised]) -> Coverage:
    return Coverage(
        target=target,
        suites=tuple(dict.fromkeys(event.suite for event in events)),
        test_cases=sum(event.test_cases for event in events),
        seconds=sum(event.seconds for event in events),
        engine_seconds=sum(event.engine_seconds or 0.0 for event in events),
        operations=_added(event.operations for event in events),
        situations=_added(
            {_named(event, name): times for name, times in event.situations.items()}
            for event in events
        ),
        hit_blocks=_added(event.hit_blocks for event in events),
        pairs=next((event.pairs for event in events if event.pairs), None),
        missing=tuple(
            dict.fromkeys(_named(event, name) for event in events for name in event.missing)
        ),
    )


def _named(event: Exercised, situation: str) -> str:
    """Prefix situations with their suite; those of the suite `cache` have no prefix."""
    return situation if event.suite == MAIN_SUITE else f"{event.suite}: {situation}"


def _added(counts: Iterable[dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return total


def _bench_group(events: Sequence[BenchSummary]) -> BenchGroup:
    first = events[0]
    size = (first.block_size, first.num_blocks)
    return BenchGroup(first.workload, *size, first.case, entries=tuple(events))


def _bench_key(event: BenchSample | BenchSummary) -> tuple[str, str, str, int, int, str]:
    size = (event.block_size, event.num_blocks)
    return (event.target, event.workload, event.groups, *size, event.case)


def _closing(run: Run) -> Ended | None:
    """The closing event, unless the run was resumed after it and then killed."""
    last = run.events[-1] if run.events else None
    return last if isinstance(last, Ended) else None


def _outcome(report: Report) -> Outcome:
    ended = _closing(report.run)
    failed = bool(report.verdicts("fail"))
    if ended and not (failed and ended.verdict == "pass"):
        word, tone = OUTCOMES[ended.verdict]
        return Outcome(word, tone, ended.sentence or _failed_sentence(report), closed=True)
    if ended:  # version 0.13 let a resumed run take a failure back
        word, tone = OUTCOMES["fail"]
        return Outcome(word, tone, _failed_sentence(report), closed=True)
    bad = bool(report.failures or report.deaths) or failed
    word, tone = OUTCOMES["fail" if bad else "killed"]
    sentence = f"the run was killed before it closed; until then {_failed_sentence(report)}"
    return Outcome(word, tone, sentence, closed=False)


def _failed_sentence(report: Report) -> str:
    verdicts = report.verdicts(*RANKS)
    parts = [leading(verdicts) or "no property fails"]
    if report.deaths:
        parts.append(f"{listed([event.target for event in report.deaths])} did not survive")
    if report.failures:
        parts.append(f"first: {report.failures[0].failure.sentence}")
    return "; ".join(filter(None, [*parts, others(verdicts)]))
