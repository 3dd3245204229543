"""JUnit XML: one test case per target and property.

| verdict | becomes | because |
| --- | --- | --- |
| pass | a passed case | |
| fail | `<failure>` | |
| inconclusive | `<error>` | it proves nothing, and must not look green |
| unsupported | `<skipped>` | the profile switches it off, with a reason |
| expected_failure | `<skipped>` | the expected-failures file names it, with the reason |

A dead target, a failed threshold, checked pass or replay, a slower cell and the conclusion of a
sweep or of planted faults are separate cases. So is the run itself: it fails if it was killed, or
if its exit code is not 0 for a reason that no other case shows.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator

from kvproof.harness.records.eval_events import EvalConcluded
from kvproof.harness.records.events import Failure, PropertyVerdict, RunIncomplete
from kvproof.harness.records.fault_events import FaultsConcluded
from kvproof.harness.records.run_directory import Run
from kvproof.harness.records.sweep_events import Cell, Slower, SweepConcluded
from kvproof.harness.records.sweep_results import case_name
from kvproof.reports.model.attention import replay_verdict, threshold_text
from kvproof.reports.model.build import build
from kvproof.reports.model.report import Report, grouped
from kvproof.reports.model.sweep import sweep_of
from kvproof.reports.values.types import Finding

_OUTCOMES = {
    "fail": "failure",
    "inconclusive": "error",
    "unsupported": "skipped",
    "expected_failure": "skipped",
}


def render_junit(run: Run) -> bytes:
    """Return the document as UTF-8."""
    report = build(run)
    root = ET.Element("testsuites", name="kvproof")
    for target in report.targets:
        _suite(root, target, [*_properties(report, target), *_others(report, target)], report)
    for provider, cells in _swept(report).items():
        _suite(root, f"sweep.{provider}", [_cell(cell) for cell in cells], report)
    cases = list(_run_cases(report))
    bad = any(case.find(tag) is not None for case in (*root.iter("testcase"), *cases)
              for tag in ("failure", "error"))  # fmt: skip
    _suite(root, "kvproof", [*cases, _whole(report, shown=bad)], report)
    for total in ("tests", "failures", "errors", "skipped"):
        root.set(total, str(sum(int(suite.get(total, "0")) for suite in root)))
    root.set("time", f"{report.seconds:.3f}")
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def _suite(root: ET.Element, name: str, cases: list[ET.Element], report: Report) -> None:
    if not cases:
        return
    suite = ET.SubElement(root, "testsuite", name=name, timestamp=report.manifest.started)
    suite.set("tests", str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
    properties = ET.SubElement(suite, "properties")
    for key, value in _environment(report, name):
        ET.SubElement(properties, "property", name=key, value=value)
    suite.extend(cases)


def _environment(report: Report, target: str) -> Iterator[tuple[str, str]]:
    manifest = report.manifest
    yield "run", manifest.id
    yield "command", report.command
    if manifest.seed is not None:
        yield "seed", str(manifest.seed)
    if manifest.commit:
        yield "commit", manifest.commit
    yield from ((f"version.{name}", value) for name, value in manifest.versions.items())
    started = report.started.get(target)
    if started:
        yield "engine", f"{started.engine} {started.version}"


def _case(group: str, name: str, verdict: str, message: str, body: str = "") -> ET.Element:
    case = ET.Element("testcase", classname=f"kvproof.{group}", name=name, time="0")
    tag = _OUTCOMES.get(verdict)
    if tag:
        ET.SubElement(case, tag, type=verdict, message=message).text = body or message
    return case


def _properties(report: Report, target: str) -> Iterator[ET.Element]:
    for section in report.sections:
        for row in section.rows:
            verdict = row.cells.get(target)
            if verdict:
                yield _property(verdict, report.finding(target, row.property))


def _property(verdict: PropertyVerdict, finding: Finding | None) -> ET.Element:
    group = f"{verdict.target}.{verdict.section}"
    message = verdict.reason or verdict.sentence
    body = ""
    if finding and verdict.verdict == "fail":
        message, body = finding.failure.sentence, _failure_text(finding.failure)
    return _case(group, verdict.property, verdict.verdict, message, body)


def _failure_text(failure: Failure) -> str:
    steps = (
        f"{place:>3}  {step.op} {step.arguments} -> {step.answer}"
        + (f"   ({step.note})" if step.note else "")
        for place, step in enumerate(failure.history, 1)
    )
    parts = (
        failure.sentence,
        failure.detail,
        f"rules {' '.join(failure.rules)}, caught by {failure.oracle}, {failure.fingerprint}",
        "\n".join(steps),
        f"python {failure.script_path}",
        failure.script,
    )
    return "\n\n".join(filter(None, parts))


def _others(report: Report, target: str) -> Iterator[ET.Element]:
    for event in report.deaths:
        if event.target == target:
            yield _case(f"{target}.target", event.kind, "fail", event.message, event.log)
    for check in report.checked:
        if check.target == target:
            size = f"block {check.block_size}, {check.num_blocks} blocks"
            name = f"{check.workload}, {size}, under the shadow memory"
            yield _case(f"{target}.checked", name, check.verdict, check.message)
    for replay in report.replayed:
        if replay.target == target:
            message = f"{replay.outcome}: {replay.message or replay.expected}"
            yield _case(f"{target}.replay", replay.path, replay_verdict(replay), message)
    for coverage in report.coverage:
        if coverage.target == target:
            yield from _missing(target, coverage.missing)


def _missing(target: str, names: Iterable[str]) -> Iterator[ET.Element]:
    for name in names:
        message = "a required situation never occurred"
        yield _case(f"{target}.situations", name, "inconclusive", message)


def _swept(report: Report) -> dict[str, list[Cell]]:
    sweep = sweep_of(report.run.events)
    return grouped(sweep.cells, lambda cell: cell.provider) if sweep else {}


def _cell(cell: Cell) -> ET.Element:
    """A cell of a sweep; a wrong result of a peer is no failure of the run."""
    verdict = {"ok": "pass", "unsupported": "unsupported"}.get(cell.outcome, "fail")
    shown = "unsupported" if cell.peer and verdict == "fail" else verdict
    message = f"{cell.outcome}: {cell.reason}" if cell.reason else cell.outcome
    group = f"sweep.{cell.provider}.{cell.kernel}"
    return _case(group, case_name(cell.case), shown, message, cell.log)


def _run_cases(report: Report) -> Iterator[ET.Element]:
    for event in report.thresholds:
        yield _case("threshold", event.name, event.verdict, threshold_text(event))
    for place, fault in enumerate(report.faults, 1):
        name = f"{place}. {fault.where}"
        yield _case("harness", name, "inconclusive", fault.message, fault.traceback)
    for cut in report.of(RunIncomplete):
        message = f"{cut.reason}: it has not tested everything"
        yield _case("incomplete", f"{cut.verb} {cut.run}", "inconclusive", message)
    for part in report.skipped:
        hint = f"; to have it: {part.command}" if part.command else ""
        yield _case("skipped", part.part, "unsupported", f"{part.reason}{hint}")
    yield from _concluded(report)


def _concluded(report: Report) -> Iterator[ET.Element]:
    """The conclusion over all cells or planted faults; the last one counts."""
    slower = {(e.kernel, e.provider, case_name(e.case)): e for e in report.of(Slower)}
    for (kernel, provider, case), event in slower.items():
        message = f"takes {event.ratio:.2f} times as long as in the baseline"
        yield _case(f"slower.{provider}.{kernel}", case, "fail", message)
    for sweep in report.of(SweepConcluded)[-1:]:
        yield _case("concluded", "sweep", sweep.verdict, sweep.reason)
    for faults in report.of(FaultsConcluded)[-1:]:
        yield _case("concluded", "faults", faults.verdict, faults.reason)
    for found in report.of(EvalConcluded):
        text = "\n".join([found.sentence, *found.doubts])
        yield _case("concluded", found.benchmark, found.verdict, found.sentence, text)


def _whole(report: Report, *, shown: bool) -> ET.Element:
    ended = report.run.ended
    verdict = "pass" if report.outcome.closed else "inconclusive"
    if ended and ended.exit_code and not shown:
        verdict = "fail" if ended.verdict in ("fail", "regression") else "inconclusive"
    return _case("run", "the run closed", verdict, report.outcome.sentence)
