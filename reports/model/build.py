"""Builds a report from the events of a run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvproof.harness.records.events import AnyEvent, Failure, PropertyVerdict
from kvproof.harness.records.resume import final_verdicts, once
from kvproof.harness.records.run_directory import Run
from kvproof.reports.model.report import Report, grouped
from kvproof.reports.values.headline import RANKS
from kvproof.reports.values.text import clean_run
from kvproof.reports.values.types import MAIN_SUITE, SECTIONS, Finding, Row, Section


def build(run: Run) -> Report:
    """Sort a run for reading."""
    run = clean_run(msgspec.structs.replace(run, events=once(run.events)))
    verdicts = final_verdicts(run.events)
    failures = [e for e in run.events if isinstance(e, Failure)]
    return Report(
        run=run,
        targets=_targets(run.events),
        sections=_sections(verdicts),
        findings=_findings(failures, verdicts),
    )


def _targets(events: Sequence[AnyEvent]) -> tuple[str, ...]:
    named = (getattr(event, "target", "") for event in events)
    return tuple(dict.fromkeys(target for target in named if target))


def _sections(verdicts: Sequence[PropertyVerdict]) -> tuple[Section, ...]:
    order = list(SECTIONS)
    groups = grouped(verdicts, lambda verdict: verdict.section)
    letters = sorted(groups, key=lambda x: (order.index(x) if x in order else len(order), x))
    sections = [Section(letter, _rows(groups[letter])) for letter in letters]
    return tuple(sorted(sections, key=lambda section: min(map(_rank, section.rows))))


def _rows(verdicts: Sequence[PropertyVerdict]) -> tuple[Row, ...]:
    rows = []
    for name, found in grouped(verdicts, lambda verdict: verdict.property).items():
        cells = {verdict.target: verdict for verdict in found}
        part = "" if found[0].suite == MAIN_SUITE else found[0].suite
        rows.append(Row(name, found[0].sentence, tuple(found[0].rules), cells, part))
    return tuple(sorted(rows, key=_rank))


def _rank(row: Row) -> int:
    """The worst verdicts come first."""
    return min(RANKS[cell.verdict] for cell in row.cells.values())


def _findings(
    failures: Sequence[Failure], verdicts: Sequence[PropertyVerdict]
) -> tuple[Finding, ...]:
    reasons = {
        (v.target, v.property): v.reason or "listed as expected"
        for v in verdicts
        if v.verdict == "expected_failure"
    }
    groups = grouped(failures, lambda f: (f.target, f.property, f.fingerprint)).values()
    firsts = [(group[0], len(group)) for group in groups]
    firsts.sort(key=lambda item: (item[0].target, item[0].property) in reasons)
    return tuple(
        Finding(number, failure, times, reasons.get((failure.target, failure.property), ""))
        for number, (failure, times) in enumerate(firsts, 1)
    )
