"""First section of a report: everything except passes, worst first."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from itertools import chain
from typing import NamedTuple

from kvproof.harness.records.eval_events import EvalConcluded
from kvproof.harness.records.events import PropertyVerdict, Replayed, RunIncomplete, Threshold
from kvproof.reports.model.report import Report, grouped
from kvproof.reports.model.sweep import sweep_of
from kvproof.reports.model.sweep_names import names_of
from kvproof.reports.values.text import listed, plural, short_path, significant, trimmed
from kvproof.reports.values.types import evidence_anchor

_MOST_EQUAL = 3
"""Inconclusive properties of a target with equal reasons that have a note each."""


class Note(NamedTuple):
    """One line; `anchor` is the fragment of its evidence, or empty."""

    verdict: str
    """A key of `text.MARKS`."""
    subject: str
    text: str
    anchor: str = ""


def notes(report: Report) -> list[Note]:
    """All notes: failures first, then inconclusive verdicts."""
    found = list(chain.from_iterable(source(report) for source in _SOURCES))
    return sorted(found, key=lambda note: note.verdict != "fail")


def replay_verdict(event: Replayed) -> str:
    """FIXED is a pass too; ERROR is no result about the target."""
    return {"PASS": "pass", "FIXED": "pass", "FAILED": "fail"}.get(event.outcome, "inconclusive")


def threshold_text(event: Threshold) -> str:
    """Measured, limit and baseline of a threshold."""
    measured = "not measured" if event.measured is None else f"measured {number(event.measured)}"
    baseline = "" if event.baseline is None else f", baseline {number(event.baseline)}"
    reason = f": {event.reason}" if event.reason else ""
    return f"{measured}, limit {number(event.limit)}{baseline}{reason}"


def number(value: float | None) -> str:
    """Format a threshold's figure: four digits show on which side of the limit it is."""
    if value is None:
        return "not measured"
    return trimmed(significant(value, max(4, len(f"{abs(value):.0f}"))))


def _failures(report: Report) -> Iterator[Note]:
    for found in report.failures:
        failure = found.failure
        subject = f"{failure.property} on {failure.target}"
        yield Note("fail", subject, failure.sentence, found.anchor)
    for verdict in report.verdicts("fail"):
        if not report.finding(verdict.target, verdict.property):  # nothing to shrink, or cut short
            anchor = evidence_anchor(verdict.target, verdict.property)
            subject = f"{verdict.property} on {verdict.target}"
            yield Note("fail", subject, verdict.reason or verdict.sentence, anchor)


def _deaths(report: Report) -> Iterator[Note]:
    for place, event in enumerate(report.shortest_deaths, 1):
        yield Note("fail", f"{event.target} ({event.kind})", event.message, f"death-{place}")


def _faults(report: Report) -> Iterator[Note]:
    for place, event in enumerate(report.faults, 1):
        subject = f"kvproof itself failed in {event.where}"
        yield Note("inconclusive", subject, event.message, f"fault-{place}")


def _incomplete(report: Report) -> Iterator[Note]:
    for event in report.of(RunIncomplete):
        text = f"{event.verb} {event.reason}: it has not tested everything"
        yield Note("inconclusive", f"run {short_path(event.run)}", text)


def _checked(report: Report) -> Iterator[Note]:
    for event in report.checked:
        if event.verdict != "pass":
            subject = f"{event.target} on {event.workload}, block {event.block_size}"
            yield Note(event.verdict, subject, event.message, "bench")


def _replayed(report: Report) -> Iterator[Note]:
    for event in report.replayed:
        verdict = replay_verdict(event)
        if verdict in ("fail", "inconclusive"):
            text = f"replay {event.outcome}: {event.message}"
            yield Note(verdict, f"{short_path(event.path)} on {event.target}", text, "replay")


def _thresholds(report: Report) -> Iterator[Note]:
    for event in report.thresholds:
        if event.verdict != "pass":
            yield Note(event.verdict, event.name, threshold_text(event), "thresholds")


def _inconclusive(report: Report) -> Iterator[Note]:
    """One note for many properties of a target with one reason: they are cells of the matrix."""
    reasons = grouped(report.verdicts("inconclusive"), lambda each: (each.target, _reason(each)))
    for (target, reason), verdicts in reasons.items():
        if len(verdicts) > _MOST_EQUAL:
            subject = f"{plural(len(verdicts), 'property')} on {target}"
            yield Note("inconclusive", subject, reason, "matrix")
            continue
        for verdict in verdicts:
            anchor = evidence_anchor(target, verdict.property)
            yield Note("inconclusive", f"{verdict.property} on {target}", reason, anchor)


def _reason(verdict: PropertyVerdict) -> str:
    never = [name for name, times in verdict.situations.items() if not times]
    return verdict.reason or f"never occurred: {listed(never)}"


def _doubts(report: Report) -> Iterator[Note]:
    for event in report.of(EvalConcluded):
        for doubt in event.doubts:
            yield Note("inconclusive", event.benchmark, doubt, "evaluation")


def _missing(report: Report) -> Iterator[Note]:
    for coverage in report.coverage:
        if coverage.missing:
            text = f"required situations never occurred: {listed(list(coverage.missing))}"
            yield Note("inconclusive", coverage.target, text, "situations")


def _sweep(report: Report) -> Iterator[Note]:
    """Failed cells of judged providers by kernel and outcome; slower cells; missing cells."""
    sweep = sweep_of(report.run.events)
    if sweep is None:
        return
    named = cache(partial(names_of, sweep))
    judged = [cell for cell in sweep.bad if not (cell.peer or cell.is_crowded_baseline)]
    kinds = grouped(judged, lambda cell: (cell.kernel, cell.provider, cell.outcome))
    for (kernel, provider, outcome), cells in kinds.items():
        subject = f"{kernel} by {provider}: {plural(len(cells), 'cell')} {outcome}"
        first = f"{named(kernel)(cells[0].case)}: {cells[0].reason}"
        yield Note("fail", subject.replace("_", " "), first, "bad-cells")
    for event in sweep.slower:
        cell = named(event.kernel)(event.case)
        text = f"{event.ratio:.2f} times the time of the baseline in {cell}"
        yield Note("fail", f"{event.kernel} by {event.provider}", text, "slower")
    if sweep.concluded and sweep.concluded.missing:
        missing = sweep.concluded.missing
        subject = f"{plural(len(missing), 'cell')} of the sweep never ran"
        yield Note("inconclusive", subject, listed(missing), "kernels")


def _torn(report: Report) -> Iterator[Note]:
    if report.run.torn:
        subject = f"{report.run.torn} unreadable lines in events.jsonl"
        yield Note("inconclusive", subject, "the run was killed, so its last record is missing")
    if report.unsummarised:
        text = f"{report.unsummarised} repetitions were recorded and not summed up"
        yield Note("inconclusive", "bench cut short", text, "bench")


_SOURCES = (
    _failures,
    _deaths,
    _faults,
    _incomplete,
    _checked,
    _replayed,
    _thresholds,
    _inconclusive,
    _doubts,
    _missing,
    _sweep,
    _torn,
)
