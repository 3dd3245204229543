"""A short summary in Markdown, for the run's page in a CI system."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvproof.harness.errors import UsageError
from kvproof.harness.records.bench_events import BenchGiven, BenchPair, SchedulerPoint, TierSummary
from kvproof.harness.records.events import Explained
from kvproof.harness.records.run_directory import Run
from kvproof.harness.redaction import redacted
from kvproof.reports.charts import bench_sides as sides
from kvproof.reports.charts import schedulers, tiers
from kvproof.reports.charts.bench import case_words, ratio_text, work
from kvproof.reports.charts.fuzz_pace import campaign_of, pace_chart, tables
from kvproof.reports.charts.hit_loss import sums
from kvproof.reports.charts.timeline_text import timeline_lines
from kvproof.reports.model.attention import Note, notes, number
from kvproof.reports.model.build import build
from kvproof.reports.model.evaluation import evaluations_of
from kvproof.reports.model.faults import kills_table, matrix_of, summaries
from kvproof.reports.model.report import Report
from kvproof.reports.model.sweep import sweep_of
from kvproof.reports.model.sweep_tables import bad_table, standings_table
from kvproof.reports.values.text import (
    MARKS,
    cut,
    duration,
    microseconds,
    one_line,
    percent,
    plural,
    scaled,
)
from kvproof.reports.values.types import Finding, Section

MOST_FAILURES = 5
"""Failures with their history; GitHub refuses a summary above 1 MiB."""

_MOST_NOTES, _MOST_STEPS, _MOST_CELL, _MOST_SCRIPT = 25, 40, 300, 4_000
_SPECIAL = re.compile(r"([\\`*_\[\]#!|~>])")


def render_markdown(run: Run) -> str:
    """Verdict, matrix, other verdicts than pass, failures, bench, thresholds, skipped suites."""
    report = build(run)
    sections = (
        _head,
        _matrix,
        _notes,
        _failures,
        _evaluations,
        _bench,
        _tiers,
        _schedulers,
        _causes,
        _sweep,
        _faults,
        _campaign,
        _thresholds,
        _skipped,
        _foot,
    )
    return "\n".join(line for section in sections for line in section(report)) + "\n"


def append_step_summary(text: str) -> bool:
    """Add `text` to the summary of a GitHub step; False where there is none.

    Raises UsageError if GITHUB_STEP_SUMMARY names a file that cannot be written.
    """
    name = os.environ.get("GITHUB_STEP_SUMMARY", "")
    if not name:
        return False
    try:
        with Path(name).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(redacted(text if text.endswith("\n") else f"{text}\n"))
    except OSError as error:
        raise UsageError(
            f"cannot append to {name!r} (GITHUB_STEP_SUMMARY): {error.strerror}",
            "unset GITHUB_STEP_SUMMARY or let it name a writable file",
        ) from error
    return True


def escape(value: object) -> str:
    """Foreign text as one line without markup, HTML, mention or table cell."""
    line = cut(one_line(str(value)), _MOST_CELL).replace("&", "&amp;").replace("<", "&lt;")
    return _SPECIAL.sub(r"\\\1", line)


def code(value: object) -> str:
    """Foreign text in a code span that it cannot leave, also in a table."""
    line = cut(one_line(str(value)), _MOST_CELL).replace("|", "\\|")
    ticks = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{pad}{line}{pad}{ticks}" if line else ""


def _fence(value: str, language: str = "") -> Iterator[str]:
    text = cut(value, _MOST_SCRIPT)
    ticks = "`" * max(3, max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    yield from (f"{ticks}{language}", text.rstrip("\n"), ticks)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _head(report: Report) -> Iterator[str]:
    outcome = report.outcome
    yield f"## kvproof {escape(report.manifest.verb)}: {outcome.word}"
    yield ""
    yield f"{escape(outcome.sentence)}."
    if not outcome.closed:
        yield ""
        yield f"**The run was killed before it closed.** Unreadable lines: {report.run.torn}."


def _matrix(report: Report) -> Iterator[str]:
    if report.sections:
        yield ""
        rows = [
            [f"**{escape(s.letter)}** {escape(s.title)}", *(_counts(s, t) for t in report.judged)]
            for s in report.sections
        ]
        yield from _table(["section", *(escape(target) for target in report.judged)], rows)


def _counts(section: Section, target: str) -> str:
    counts = section.counts(target)
    return ", ".join(
        f"{MARKS[name].symbol} {counts[name]} {MARKS[name].word}" for name in MARKS if counts[name]
    )


def _notes(report: Report) -> Iterator[str]:
    found = notes(report)
    if found:
        yield from ("", "### What is not a pass", "")
    yield from (_note(note) for note in found[:_MOST_NOTES])
    if len(found) > _MOST_NOTES:
        yield f"- and {len(found) - _MOST_NOTES} more"


def _note(note: Note) -> str:
    mark = MARKS[note.verdict]
    return f"- {mark.symbol} {mark.word} **{escape(note.subject)}**: {escape(note.text)}"


def _failures(report: Report) -> Iterator[str]:
    for finding in report.failures[:MOST_FAILURES]:
        yield from _failure(report, finding)


def _failure(report: Report, finding: Finding) -> Iterator[str]:
    failure = finding.failure
    yield from ("", f"### {finding.number}. {escape(failure.sentence)}", "")
    yield (
        f"{code(failure.property)} on {code(failure.target)}, "
        f"rules {escape(' '.join(failure.rules))}, caught by {escape(failure.oracle)}, "
        f"fingerprint {code(failure.fingerprint)}"
    )
    if rule := report.sentence_of(failure.property):
        yield from ("", f"Must hold: {escape(rule)}.")
    if failure.intended:
        yield from ("", f"If intended, declare {code(failure.intended)}.")
    yield ""
    rows = [
        [str(place), *map(code, (step.op, step.arguments, step.answer)), escape(step.note)]
        for place, step in enumerate(failure.history[:_MOST_STEPS], 1)
    ]
    yield from _table(["#", "operation", "arguments", "answer", "violation"], rows)
    if failure.detail:
        yield from ("", *_fence(failure.detail))
    if failure.timeline:
        yield from ("", *_fence("\n".join(timeline_lines(failure.timeline))))
    yield from ("", "<details><summary>script that reproduces it</summary>", "")
    yield from _fence(failure.script, "python")
    yield from ("", "</details>", "")
    yield f"Reproduce with {code(report.script_command(failure))}"


def _evaluations(report: Report) -> Iterator[str]:
    for found in evaluations_of(report.run.events):
        yield from ("", f"### {escape(found.started.title)}", "")
        yield from (f"- {escape(line)}" for line in found.started.lines)
        for table in found.tables:
            yield from ("", f"#### {escape(table.title)}", "")
            yield from _table(table.head, [[*map(escape, row)] for row in table.rows])
            if table.note:
                yield from ("", escape(table.note))


def _bench(report: Report) -> Iterator[str]:
    if report.bench:
        yield from ("", "### Bench", "")
        rows = [
            [escape(group.title), str(group.block_size), escape(case_words(group.case)),
             escape(entry.target), escape(work(entry.lacks)), f"{scaled(entry.tokens_per_second)}",
             escape(ratio_text(entry)),
             microseconds(entry.p50_us), microseconds(entry.p99_us), percent(entry.hit_rate)]
            for group in report.bench for entry in group.entries
        ]  # fmt: skip
        heads = ["workload", "block", "case", "target", "work", "tokens/s", "against peer"]
        yield from _table([*heads, "p50", "p99", "hit rate"], rows)
    for title, table in (
        (sides.PAIRS, sides.pairs(report.of(BenchPair))),
        (sides.GIVEN, sides.given(report.of(BenchGiven))),
    ):
        if table.rows:
            yield from ("", f"### {title}", "")
            yield from _table([*table.head], [[*map(escape, row)] for row in table.rows])


def _tiers(report: Report) -> Iterator[str]:
    if found := report.of(TierSummary):
        yield from ("", f"### {tiers.TITLE}", "")
        yield from _table(
            [*tiers.HEADS], [[*map(escape, tiers.row(each))] for each in tiers.measured(found)]
        )


def _schedulers(report: Report) -> Iterator[str]:
    if found := report.of(SchedulerPoint):
        yield from ("", f"### {schedulers.TITLE}", "")
        yield from _table(
            [*schedulers.HEADS], [[*map(escape, schedulers.row(each))] for each in found]
        )


def _causes(report: Report) -> Iterator[str]:
    found = sums(report.of(Explained))
    if found:
        yield from ("", "### Why hits were not longer", "")
    for each in found:
        causes = [f"{escape(name)} {count:,}" for name, count in each.lost.items()]
        lost = f"; lost to {', '.join(causes)}" if causes else ""
        yield f"- {escape(each.title)}: {escape(each.sentence)}{lost}"


def _sweep(report: Report) -> Iterator[str]:
    sweep = sweep_of(report.run.events)
    if sweep is None:
        return
    yield from ("", "### Kernels", "", f"{escape(sweep.where)}", "")
    data = standings_table(sweep)
    yield from _table(list(data.head), [list(map(escape, row)) for row in data.rows])
    if sweep.bad:
        data = bad_table(sweep, sweep.bad)
        yield from ("", "Cells that are not right, or found no room:", "")
        rows = [list(map(escape, row)) for row in data.rows[:_MOST_NOTES]]
        yield from _table(list(data.head), rows)


def _faults(report: Report) -> Iterator[str]:
    matrix = matrix_of(report.run.events)
    if matrix is None:
        return
    yield from ("", "### Planted faults", "", f"{escape(matrix.sentence)}.")
    for data in (*summaries(matrix), kills_table(matrix)):
        yield ""
        yield from _table(list(data.head), [list(map(escape, row)) for row in data.rows])


def _campaign(report: Report) -> Iterator[str]:
    campaign = campaign_of(report.run.events)
    if campaign is None:
        return
    yield from ("", "### Campaign", "", f"{escape(campaign.sentence)}.")
    if pace := pace_chart(campaign):
        yield from ("", f"{escape(pace.title)}; {escape(pace.subtitle)}.")
    for data in tables(campaign):
        yield ""
        rows = [list(map(escape, row)) for row in data.rows[:_MOST_NOTES]]
        yield from _table(list(data.head), rows)


def _thresholds(report: Report) -> Iterator[str]:
    if report.thresholds:
        yield from ("", "### Thresholds", "")
        rows = [
            [escape(event.name), number(event.measured), number(event.limit),
             "" if event.baseline is None else number(event.baseline),
             f"{MARKS[event.verdict].symbol} {MARKS[event.verdict].word} {escape(event.reason)}"]
            for event in report.thresholds
        ]  # fmt: skip
        yield from _table(["threshold", "measured", "limit", "baseline", "verdict"], rows)


def _skipped(report: Report) -> Iterator[str]:
    if report.skipped:
        yield from ("", "### Skipped", "")
    for event in report.skipped:
        command = f": {code(event.command)}" if event.command else ""
        yield f"- {escape(event.part)}: {escape(event.reason)}{command}"


def _foot(report: Report) -> Iterator[str]:
    targets = [f"{e.engine} {e.version}" for e in report.started.values()]
    seed = [] if report.manifest.seed is None else [f"seed {report.manifest.seed}"]
    yield from ("", f"{', '.join([duration(report.seconds), *seed, *map(escape, targets)])};")
    yield f"{plural(len(report.run.events), 'event')} in {code(report.run.directory)};"
    yield f"repeat with {code(report.command)}"
