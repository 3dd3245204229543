"""Verdicts from explorations: never a pass without evidence."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from kvproof.harness.errors import ANSWERS
from kvproof.harness.records.events import (
    Exercised,
    Failure,
    PropertyVerdict,
    TargetFailed,
    Verdict,
)
from kvproof.suites.framework.component_suite import Counterexample
from kvproof.suites.framework.expected_failures import Expected, by_property
from kvproof.suites.framework.explore import Counts
from kvproof.suites.framework.pairs import coverage, half_unseen
from kvproof.suites.framework.property import Property
from kvproof.suites.framework.suite import Suite


@dataclass
class Tally(Counts):
    """Counts of one suite's explorations; tallies of workers can be merged."""

    failures: dict[str, Failure] = field(default_factory=dict)
    others: dict[str, Counterexample] = field(default_factory=dict)
    """Histories of failures that were not shrunk."""
    excused: set[str] = field(default_factory=set)
    """Properties whose minimal history is that of a known failure."""
    died: TargetFailed | None = None
    interrupted: bool = False
    """Whether Ctrl-C ended it: missing situations and failures might have come."""
    cut: bool = False
    """So many properties failed that the search ended."""

    def failed(self, name: str) -> bool:
        """Whether a property failed in an unexpected way, shrunk or not."""
        return name in self.failures or self.unshrunk[name] > 0

    def merge(self, other: Tally) -> None:
        """Add the tally of another worker."""
        self.add(other)
        self.failures = other.failures | self.failures
        self.excused |= other.excused
        self.died = self.died or other.died
        self.interrupted = self.interrupted or other.interrupted


def exercised(target: str, suite: Suite, tally: Tally) -> Exercised:
    """Return the effort that a suite spent on a target."""
    space = suite.component.space
    return Exercised(
        target=target,
        suite=suite.name,
        test_cases=tally.test_cases,
        operations=dict(tally.operations),
        situations=dict(tally.situations),
        hit_blocks=dict(tally.hits),
        seconds=tally.seconds,
        engine_seconds=tally.engine_seconds or None,
        missing=[] if tally.interrupted else missing(suite, tally),
        pairs=coverage(space, suite.judged, tally.pairs) if space else None,
    )


def missing(suite: Suite, tally: Tally) -> list[str]:
    """Return the situations that the properties judged here need and that never occurred."""
    needed = {situation for prop in suite.judged for situation in prop.situations}
    return sorted(needed - set(tally.situations))


def verdicts(
    target: str,
    suite: Suite,
    tally: Tally,
    expected: Iterable[Expected],
    *,
    shown: Collection[str] | None = None,
) -> list[PropertyVerdict]:
    """Judge every property of a suite; `expected` holds the known failures.

    `shown`: the mechanisms whose own histories show them, of those that no history met; None: the
    target is gone, and nothing is known of them.
    """
    failed = [prop for prop in suite.beyond if tally.failed(prop.name)]
    judged, entries = (*suite.properties, *failed), by_property(expected)
    return [
        _judge(target, suite, prop, tally, entries.get(prop.name, []), shown) for prop in judged
    ]


def _judge(
    target: str,
    suite: Suite,
    prop: Property,
    tally: Tally,
    known: Sequence[Expected],
    shown: Collection[str] | None,
) -> PropertyVerdict:
    seen = [each for each in known if _counts(each, tally, shown)]
    if seen and not tally.failed(prop.name):
        verdict, reason = _expected(seen, tally, shown)
    else:  # also where it failed in another way
        verdict, reason = _verdict(suite, prop, tally)
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
        of_engine=verdict == "expected_failure" and all(each.of_engine for each in seen),
    )


def _counts(each: Expected, tally: Tally, shown: Collection[str] | None) -> bool:
    """Whether an entry bears on the verdict: random histories alone show one without a history."""
    if tally.tolerated[each.mechanism] or not each.history:
        return bool(tally.tolerated[each.mechanism])
    return each.strict or shown is None or each.mechanism in shown


def _expected(
    known: Sequence[Expected], tally: Tally, shown: Collection[str] | None
) -> tuple[Verdict, str]:
    unmet = [each for each in known if not tally.tolerated[each.mechanism]]
    gone = [each for each in unmet if each.mechanism not in (shown or ())]
    if gone and (tally.interrupted or shown is None):
        return "inconclusive", f"interrupted before the expected failure was met: {_why(gone)}"
    if gone:
        return "fail", (
            f"it was expected to fail and did not, by {gone[0].mechanism}: its own history does "
            "not show it; remove the entry, or find out why"
        )
    operations = tally.operations.total()
    far = [each.far(tally.tolerated[each.mechanism], operations) for each in known]
    return "expected_failure", "; ".join([_why(known), *filter(None, far)])


def _why(known: Iterable[Expected]) -> str:
    return "; ".join(f"{each.reason} ({each.upstream})" for each in known)


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
    if cut_short := _cut_short(tally):
        held = "held so far" if tally.checks[prop.name] else "not evaluated so far"
        return "inconclusive", f"{held}: {cut_short}"
    missing = [name for name in prop.situations if not tally.situations[name]]
    if missing:
        return "inconclusive", "never happened: " + "; ".join(missing)
    if not tally.checks[prop.name]:
        return "inconclusive", "it was never evaluated"
    space = suite.component.space
    return "pass", half_unseen(space, prop, tally.pairs) if space else ""


def _cut_short(tally: Tally) -> str:
    """Return what ended the run before its budget was spent; empty: nothing did."""
    if tally.died:
        return f"the target died ({tally.died.kind}) before the budget was spent"
    if tally.interrupted:
        return "the run was interrupted"
    return f"{len(tally.failures)} failed before the budget was spent" if tally.cut else ""
