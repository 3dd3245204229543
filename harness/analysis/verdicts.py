"""Which properties, kernel cells, checks, recorded failures and targets fare otherwise now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from kvproof.harness.analysis.series import engines_of
from kvproof.harness.records.events import (
    AnyEvent,
    Checked,
    PropertyVerdict,
    Replayed,
    TargetFailed,
)
from kvproof.harness.records.resume import once
from kvproof.harness.records.run_directory import Run
from kvproof.harness.records.sweep_results import case_name, latest

Trend: TypeAlias = Literal["worse", "better", "different"]

_RANKS = {
    "pass": 0, "ok": 0, "PASS": 0, "FIXED": 0, "expected_failure": 1, "unsupported": 1,
    "inconclusive": 2, "ERROR": 2, "out_of_resources": 3, "fail": 3, "wrong": 3, "timeout": 3,
    "crash": 3, "FAILED": 3,
}  # fmt: skip
"""Outcome -> how bad it is."""

FAILED = 3
UNKNOWN = 2


class Subject(NamedTuple):
    """The identity of an outcome."""

    kind: Literal["property", "cell", "op log", "checked", "target"]
    target: str
    name: str


class Outcome(NamedTuple):
    """One outcome, with the data that separates two failures of one kind."""

    verdict: str
    fingerprint: str = ""
    reason: str = ""


class VerdictChange(NamedTuple):
    """A subject whose outcome is another one now."""

    subject: Subject
    base: Outcome
    head: Outcome
    trend: Trend

    @property
    def rank(self) -> int:
        """How bad the new outcome is: FAILED, UNKNOWN or less."""
        return _RANKS.get(self.head.verdict, UNKNOWN)


def outcomes(runs: Sequence[Run]) -> dict[Subject, Outcome]:
    """Outcome of each subject over the runs of a side; a failure in one of them stays.

    Within one run the rule of `records.resume` decides.
    """
    found: dict[Subject, Outcome] = {}
    engines = engines_of(runs)
    for run in runs:
        for subject, outcome in _outcomes(once(run.events), engines):
            if subject not in found or _RANKS.get(found[subject].verdict, UNKNOWN) < FAILED:
                found[subject] = outcome
    return found


def _outcomes(
    events: Sequence[AnyEvent], engines: Mapping[str, str]
) -> Iterable[tuple[Subject, Outcome]]:
    for event in events:
        if target := engines.get(getattr(event, "target", "")):
            yield from _of_target(event, target)
    for cell in latest(events).values():
        if not cell.peer:
            name = f"{cell.kernel} {case_name(dict(sorted(cell.case.items())))}"
            yield Subject("cell", cell.provider, name), Outcome(cell.outcome, "", cell.reason)


def _of_target(event: AnyEvent, target: str) -> Iterable[tuple[Subject, Outcome]]:
    """The outcome of a target in one event; any other event proves that it was alive then."""
    alive = Subject("target", target, "lives")
    if isinstance(event, TargetFailed):
        yield alive, Outcome("fail", "", f"{event.kind}: {event.message}")
        return
    yield alive, Outcome("pass")
    if isinstance(event, PropertyVerdict):
        subject = Subject("property", target, event.property)
        yield subject, Outcome(event.verdict, event.fingerprint, event.reason)
    elif isinstance(event, Replayed):
        name = event.path.rpartition("/")[2]
        yield Subject("op log", target, name), Outcome(event.outcome, "", event.message)
    elif isinstance(event, Checked):
        name = f"{event.workload}, block {event.block_size}, {event.num_blocks:,} blocks"
        yield Subject("checked", target, name), Outcome(event.verdict, "", event.message)


def changes(
    base: Mapping[Subject, Outcome], head: Mapping[Subject, Outcome]
) -> list[VerdictChange]:
    """Changed outcomes of subjects on both sides, the worst first."""
    found = [
        VerdictChange(subject, old, head[subject], _trend(old, head[subject]))
        for subject, old in base.items()
        if subject in head and not _equal(old, head[subject])
    ]
    order = {"worse": 0, "different": 1, "better": 2}
    return sorted(found, key=lambda each: (order[each.trend], -each.rank, each.subject))


def _equal(old: Outcome, new: Outcome) -> bool:
    """Random histories give one failure another fingerprint now and then: that is no news."""
    return old.verdict == new.verdict


def _trend(old: Outcome, new: Outcome) -> Trend:
    before, after = (_RANKS.get(each.verdict, UNKNOWN) for each in (old, new))
    return "worse" if after > before else "better" if after < before else "different"
