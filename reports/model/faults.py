"""Kill matrix: which property and oracle found each planted fault, after how many cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from kvproof.harness.records.events import AnyEvent
from kvproof.harness.records.fault_events import FaultJudged, FaultsConcluded, FaultsStarted, Kill
from kvproof.harness.statistics import wilson
from kvproof.reports.model.report import grouped
from kvproof.reports.values.svg import Table
from kvproof.reports.values.text import duration, percent, plural

SHADOW = "shadow memory"
"""The only oracle that needs neither the engine's own report nor another engine."""


@dataclass(frozen=True)
class FaultMatrix:
    """A run over planted faults, sorted for reading."""

    started: FaultsStarted
    judged: tuple[FaultJudged, ...]
    """Last verdict on each fault: survivors first, then by mechanism."""
    concluded: FaultsConcluded | None

    @cached_property
    def survivors(self) -> list[FaultJudged]:
        """Faults that nothing found."""
        return [each for each in self.judged if each.outcome == "survived"]

    @cached_property
    def left_out(self) -> list[FaultJudged]:
        """Faults that count neither as found nor as survivors."""
        return [each for each in self.judged if each.outcome == "left_out"]

    @cached_property
    def unseen(self) -> list[FaultJudged]:
        """Soundness faults that other checks found, and shadow memory did not."""
        return [each for each in self.judged if each.unseen]

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        killed = [each for each in self.judged if each.outcome == "killed"]
        judged = len(killed) + len(self.survivors)
        share = _share(len(killed), judged, sampled=bool(self.started.source))
        mechanisms = len({each.mechanism for each in self.judged})
        return (
            f"{len(killed)} of {plural(judged, 'fault')} found ({share}) by the budget "
            f"{self.started.budget}, over {plural(mechanisms, 'mechanism')}; "
            f"{self._sample if self.started.source else self._seen}{self._pace}"
            f"{self._not_counted}"
        )

    @property
    def _sample(self) -> str:
        """The sample, and the share with the faults that nothing can observe as survivors."""
        silent = sum(each.outcome == "equivalent" for each in self.judged)
        killed = sum(each.outcome == "killed" for each in self.judged)
        crashed = sum(each.kill is not None and each.kill.oracle in _ENDS for each in self.judged)
        with_all = _share(killed, len(self.judged) - len(self.left_out), sampled=True)
        unobservable = f"{silent} more are unobservable, with them {with_all}; " if silent else ""
        return (
            f"{unobservable}{crashed} of those found end the process or hang; {self.started.source}"
        )

    @property
    def _not_counted(self) -> str:
        """How many faults count neither way, and why."""
        reasons = Counter(each.reason for each in self.left_out)
        return "".join(f"; {plural(n, 'fault')} left out: {why}" for why, n in reasons.items())

    @property
    def _pace(self) -> str:
        """Seconds and test cases until the first failure of the faults that were found."""
        kills = [e.kill for e in self.judged if e.outcome == "killed" and e.kill]
        if not kills:
            return ""
        seconds, cases = ([*map(get, kills)] for get in (_SECONDS, _CASES))
        return (
            f"; first failure: median {duration(_rank(seconds, 50))}, p90 "
            f"{duration(_rank(seconds, 90))}; {_rank(cases, 50):,.0f} and {_rank(cases, 90):,.0f} "
            "test cases"
        )

    @property
    def _seen(self) -> str:
        wanted = [
            each
            for each in self.judged
            if (each.outcome == "killed" and each.shadow) or each.unseen
        ]
        seen = sum(each.shadow is not None for each in wanted)
        return f"a shadow memory alone found {seen} of {len(wanted)} that it has to"


_ENDS = frozenset({"crash", "hang"})


def _share(found: int, of: int, *, sampled: bool) -> str:
    if not of:
        return "none"
    low, high = wilson(found, of)
    interval = f", 95 % interval {percent(low)} to {percent(high)}" if sampled else ""
    return f"{percent(found / of)}{interval}"


_SECONDS, _CASES = attrgetter("seconds"), attrgetter("cases")


def _rank(values: Sequence[float], percent: int) -> float:
    """Return the value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]


def matrix_of(events: Sequence[AnyEvent]) -> FaultMatrix | None:
    """Return the kill matrix of a run; None if the run has none."""
    started = [event for event in events if isinstance(event, FaultsStarted)]
    if not started:
        return None
    latest = {event.fault: event for event in events if isinstance(event, FaultJudged)}
    order = sorted(
        latest.values(), key=lambda each: (each.outcome != "survived", each.mechanism, each.fault)
    )
    concluded = [event for event in events if isinstance(event, FaultsConcluded)]
    return FaultMatrix(started[-1], tuple(order), concluded[-1] if concluded else None)


def summaries(matrix: FaultMatrix) -> list[Table]:
    """Return the tables before the one of each fault: by mechanism, and of a sample by module."""
    return [mechanisms_table(matrix), *([modules_table(matrix)] if matrix.started.source else [])]


def mechanisms_table(matrix: FaultMatrix) -> Table:
    """Mechanism -> faults, how many were found, and by which oracle."""
    rows = []
    for name, found in sorted(grouped(matrix.judged, lambda each: each.mechanism).items()):
        kills = [each.kill for each in found if each.outcome == "killed" and each.kill]
        oracles = Counter(kill.oracle for kill in kills)
        by = ", ".join(f"{oracle} {count}" for oracle, count in oracles.most_common())
        cases = sorted(kill.cases for kill in kills)
        middle = f"{cases[len(cases) // 2]:,}" if cases else ""
        counts = (str(len(found)), str(len(kills)), middle, f"{cases[-1]:,}" if cases else "")
        pace = [f"{_rank([*map(_SECONDS, kills)], at):.1f}" if kills else "" for at in (50, 90)]
        rows.append((name, by, *counts, *pace))
    head = ("mechanism", "first found by", "faults", "found", "median cases", "most")
    return Table((*head, "median s", "p90 s"), tuple(rows), words=2)


def modules_table(matrix: FaultMatrix) -> Table:
    """Module -> faults of a sample, how many were found, and the share with its interval."""
    rows = []
    for name, found in sorted(grouped(matrix.judged, lambda each: each.module).items()):
        ran = [each for each in found if each.outcome in ("killed", "survived")]
        killed = sum(each.outcome == "killed" for each in ran)
        counts = (str(len(ran)), str(killed), _share(killed, len(ran), sampled=True))
        rows.append((name, *counts, ", ".join(e.fault for e in ran if e.outcome == "survived")))
    head = ("module", "faults", "found", "share", "survivors")
    return Table(head, tuple(rows), words=1)


def kills_table(matrix: FaultMatrix) -> Table:
    """Fault -> property that found it, cases, seconds, and operations of the failure."""
    head = ("fault", "defect", "modelled on", "found by", "oracle", "shadow memory alone")
    rows = tuple(
        (
            f"{each.mechanism}: {each.fault}",
            f"{each.story} ({each.kind}, {each.module})",
            " ".join(each.bugs),
            _found_by(each),
            each.kill.oracle if each.kill else "",
            _shadow(each),
            *_figures(each.kill),
        )
        for each in matrix.judged
    )
    return Table((*head, "cases", "seconds", "operations"), rows, words=6)


def narrow_kills(matrix: FaultMatrix) -> Table:
    """The same for a terminal of 80 columns."""
    rows = tuple(
        (each.fault, _found_by(each), each.kill.oracle if each.kill else "", *_figures(each.kill))
        for each in matrix.judged
    )
    return Table(("fault", "found by", "oracle", "cases", "s", "ops"), rows, words=3)


def _found_by(each: FaultJudged) -> str:
    if each.outcome != "killed" or each.kill is None:
        return "SURVIVED" if each.outcome == "survived" else each.outcome.replace("_", " ")
    return f"{each.kill.suite}: {each.kill.property}"


def _figures(kill: Kill | None) -> tuple[str, str, str]:
    if kill is None:
        return ("", "", "")
    return (f"{kill.cases:,}", f"{kill.seconds:.1f}", str(kill.size) if kill.size else "")


def _shadow(each: FaultJudged) -> str:
    if each.outcome != "killed" or each.kind != "soundness":
        return each.reason
    if each.unshadowed:
        return f"not its business: {each.unshadowed}"
    if each.shadow is None:
        return "NOT SEEN"
    if each.kill and each.kill.oracle == SHADOW:
        return "it was first"
    return f"{each.shadow.property}, case {each.shadow.cases:,}, {plural(each.shadow.size, 'step')}"


def describe(event: AnyEvent) -> tuple[str, str]:
    """Verdict and line of an event."""
    match event:
        case FaultsStarted():
            return "", f"{event.source or plural(event.planned, 'fault')}, budget {event.budget}"
        case FaultJudged(outcome="killed") if event.kill:
            kill = event.kill
            return "", (
                f"{event.fault}: {_found_by(event)} [{kill.oracle}] after {kill.cases:,} cases, "
                f"{duration(kill.seconds)}; shrunk to {plural(kill.size, 'operation')}"
            )
        case FaultJudged(outcome="survived"):
            return "fail", f"{event.fault} survived {event.cases:,} cases: {event.story}"
        case FaultJudged():
            return "", f"{event.fault} is {event.outcome.replace('_', ' ')}: {event.reason}"
        case FaultsConcluded():
            return event.verdict, event.reason or "every fault was found"
    return "", type(event).__name__
