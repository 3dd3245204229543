"""Verdicts from explorations: never a pass without evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvproof.harness.errors import ANSWERS
from kvproof.harness.records.events import (
    Exercised,
    Failure,
    PropertyVerdict,
    TargetFailed,
    Verdict,
)
from kvproof.suites.framework.expected_failures import Expected
from kvproof.suites.framework.explore import Counts
from kvproof.suites.framework.property import Level, Property
from kvproof.suites.framework.suite import Suite


@dataclass
class Tally(Counts):
    """Counts of one suite's explorations; tallies of workers can be merged."""

    failures: dict[str, Failure] = field(default_factory=dict)
    died: TargetFailed | None = None
    interrupted: bool = False
    """By Ctrl-C: missing situations and failures might have come."""
    cut: bool = False
    """So many properties failed that the search ended."""
    seconds: float = 0.0

    def failed(self, name: str) -> bool:
        """Whether a property failed in an unexpected way, shrunk or not."""
        return name in self.failures or self.unshrunk[name] > 0

    def merge(self, other: Tally) -> None:
        """Add the tally of another worker."""
        self.add(other)
        self.failures = other.failures | self.failures
        self.died = self.died or other.died
        self.interrupted = self.interrupted or other.interrupted
        self.seconds += other.seconds


def exercised(target: str, suite: Suite, tally: Tally) -> Exercised:
    """Return the effort that a suite spent on a target."""
    return Exercised(
        target=target,
        suite=suite.name,
        test_cases=tally.test_cases,
        operations=dict(tally.operations),
        situations=dict(tally.situations),
        hit_blocks=dict(tally.hits),
        seconds=tally.seconds,
        missing=[] if tally.interrupted else missing(suite, tally),
    )


def missing(suite: Suite, tally: Tally) -> list[str]:
    """Return the situations that the properties judged here need and that never occurred."""
    needed = {situation for prop in suite.judged for situation in prop.situations}
    return sorted(needed - set(tally.situations))


def verdicts(
    target: str, suite: Suite, tally: Tally, expected: Mapping[str, Expected], *, level: Level
) -> list[PropertyVerdict]:
    """Judge every property of a suite; `expected` holds the known failures."""
    failed = [prop for prop in suite.beyond if tally.failed(prop.name)]
    judged = (*suite.properties, *failed)
    return [_judge(target, suite, prop, tally, expected, level) for prop in judged]


def _judge(
    target: str,
    suite: Suite,
    prop: Property,
    tally: Tally,
    expected: Mapping[str, Expected],
    level: Level,
) -> PropertyVerdict:
    known = expected.get(prop.name)
    if known and known.where and tally.failed(prop.name):
        known = None  # it failed elsewhere
    if known and not known.is_seen(level) and not tally.tolerated[prop.name]:
        known = None  # its situation was not drawn
    verdict, reason = _expected(suite, known, tally) if known else _verdict(suite, prop, tally)
    failure = tally.failures.get(prop.name)
    return PropertyVerdict(
        target=target,
        suite=suite.name,
        property=prop.name,
        section=prop.section,
        rules=list(prop.rules),
        sentence=prop.sentence,
        verdict=verdict,
        reason=reason,
        oracle=failure.oracle if failure else prop.oracle,
        checks=tally.checks[prop.name],
        situations={name: tally.situations[name] for name in prop.situations},
        fingerprint=failure.fingerprint if failure else "",
    )


def _expected(suite: Suite, known: Expected, tally: Tally) -> tuple[Verdict, str]:
    why = f"{known.reason} ({known.upstream})"
    if tally.tolerated[known.property]:
        return "expected_failure", why
    if tally.interrupted:
        return "inconclusive", f"interrupted before the expected failure was met: {why}"
    if suite.judged and not (tally.test_cases or tally.died):
        return "inconclusive", f"no history was run that could meet the expected failure: {why}"
    return "fail", "it was expected to fail and did not: remove the entry, or find out why"


def _verdict(suite: Suite, prop: Property, tally: Tally) -> tuple[Verdict, str]:
    if prop.name in tally.failures:
        return "fail", tally.failures[prop.name].sentence
    if reason := suite.why_not(prop):
        return "unsupported", reason
    if tally.died and prop.name == ANSWERS:
        return "fail", f"the target died ({tally.died.kind}): {tally.died.message}"
    if times := tally.unshrunk[prop.name]:
        histories = "history" if times == 1 else "histories"
        return "fail", f"it failed in {times} {histories}, not shrunk"
    missing = [name for name in prop.situations if not tally.situations[name]]
    if missing:
        return "inconclusive", "never happened: " + "; ".join(missing)
    if not tally.checks[prop.name]:
        return "inconclusive", "it was never evaluated"
    if tally.died:
        return "inconclusive", f"the target died ({tally.died.kind}) before the budget was spent"
    if tally.cut:
        return "inconclusive", f"{len(tally.failures)} failed before the budget was spent"
    return "pass", ""
