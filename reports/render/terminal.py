"""A finished run in the terminal: the content of the HTML, at 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvproof.harness.records.bench_events import BenchPair, SchedulerPoint, TierSummary
from kvproof.harness.records.events import BenchSummary, Optimum, Step
from kvproof.harness.records.run_directory import Run
from kvproof.reports.charts import bench_sides as sides
from kvproof.reports.charts import schedulers, tiers
from kvproof.reports.charts.bench import bound, case_words
from kvproof.reports.charts.block_table import describe
from kvproof.reports.charts.timeline_text import timeline_lines
from kvproof.reports.model.attention import Note, notes, number
from kvproof.reports.model.build import build
from kvproof.reports.model.evaluation import evaluations_of, narrow
from kvproof.reports.model.faults import matrix_of, narrow_kills, summaries
from kvproof.reports.model.report import Report, grouped
from kvproof.reports.model.sweep import sweep_of
from kvproof.reports.model.sweep_names import names_of
from kvproof.reports.model.sweep_tables import narrow_standings
from kvproof.reports.render.console import STYLES, TONES, Screen
from kvproof.reports.render.live import LiveProgress
from kvproof.reports.values.pairs import pairs_line
from kvproof.reports.values.text import (
    MARKS,
    duration,
    microseconds,
    one_line,
    percent,
    plural,
    scaled_range,
    significant,
)
from kvproof.reports.values.types import Finding, Section

__all__ = ["LiveProgress", "print_run"]

MOST_FAILURES = 10
"""Failures shown with their history; the HTML has all."""

_MOST_STEPS, _MOST_BLOCKS, _MOST_NOTES = 40, 16, 30


def print_run(run: Run, console: Console) -> None:
    """Print the final tables; the verdict is last, next to the prompt."""
    report, screen = build(run), Screen(console)
    found = notes(report)
    if not found:
        _coverage(report, screen)
    _matrix(report, screen)
    _notes(found, screen)
    for finding in report.findings[:MOST_FAILURES]:
        _finding(report, finding, screen)
    if len(report.findings) > MOST_FAILURES:
        screen.line(f"{len(report.findings) - MOST_FAILURES} more failures are in the HTML report")
    _deaths(report, screen)
    _evaluations(report, screen)
    if found:
        _coverage(report, screen)
    _bench(report, screen)
    _tiers(report, screen)
    _schedulers(report, screen)
    _optimum(report, screen)
    _sweep(report, screen)
    _faults(report, screen)
    _thresholds(report, screen)
    _skipped(report, screen)
    _verdict(report, screen)


def _matrix(report: Report, screen: Screen) -> None:
    if not report.sections:
        return
    judged = [row for section in report.sections for row in section.judged]
    screen.heading(f"{plural(len(judged), 'property')} on {plural(len(report.judged), 'target')}")
    table = screen.table("section", *report.judged)
    for section in filter(lambda each: each.judged, report.sections):
        cells = (_counts(section, target, screen) for target in report.judged)
        table.add_row(screen.text(f"{section.letter}  {section.title}"), *cells)
    screen.show(table)
    used = {v for s in report.sections for t in report.judged for v in s.counts(t)}
    legend = (f"{screen.symbol(name)} {MARKS[name].word}" for name in MARKS if name in used)
    screen.line("   ".join(legend), "dim")
    if folded := len(report.rows) - len(judged):
        screen.line(f"{folded:,} more are unsupported here: the HTML report has the reasons", "dim")


def _counts(section: Section, target: str, screen: Screen) -> Text:
    counts = section.counts(target)
    cell = Text()
    for name in MARKS:
        if counts[name]:
            cell.append(f"{screen.symbol(name)}{counts[name]:>3} ", STYLES[name])
    return cell


def _notes(found: Sequence[Note], screen: Screen) -> None:
    if not found:
        return
    screen.heading("What is not a pass")
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for note in found[:_MOST_NOTES]:
        line = screen.text(f"{note.subject}: ", "bold")
        table.add_row(screen.mark(note.verdict), line.append_text(screen.text(one_line(note.text))))
    screen.show(table)
    if len(found) > _MOST_NOTES:
        screen.line(f"and {len(found) - _MOST_NOTES} more in the HTML report")


def _finding(report: Report, finding: Finding, screen: Screen) -> None:
    failure = finding.failure
    screen.line()
    title = screen.text(f"{finding.number}. ", "bold")
    title.append_text(screen.mark("expected_failure" if finding.expected else "fail"))
    screen.write(title.append_text(screen.text(f"  {one_line(failure.sentence)}", "bold")))
    screen.line(_context(finding), "dim", indent=3)
    rule = report.sentence_of(failure.property)
    must_hold = f"must hold: {rule}" if rule else ""
    meant = f"if intended, declare {failure.intended}" if failure.intended else ""
    for line in filter(None, [finding.expected, must_hold, meant, *failure.detail.splitlines()]):
        screen.line(line, indent=3)
    _history(failure.history, screen)
    for line in timeline_lines(failure.timeline) if failure.timeline else ():
        screen.line(line, indent=3)
    suspects = [view for view in failure.blocks if view.suspect] or failure.blocks
    for view in suspects[:_MOST_BLOCKS]:
        screen.line(one_line(describe(view)), indent=3)
    _reproduce(report, finding, screen)


def _context(finding: Finding) -> str:
    failure = finding.failure
    parts = (
        f"{failure.property} on {failure.target}",
        f"rules {' '.join(failure.rules)}",
        f"caught by {failure.oracle or 'an unnamed oracle'}",
        f"fingerprint {failure.fingerprint}",
        f"found {finding.times} times" if finding.times > 1 else "",
    )
    return ", ".join(filter(None, parts))


def _history(history: Sequence[Step], screen: Screen) -> None:
    if not history:
        return
    table = screen.table("#", "operation", "arguments", "answer")
    table.columns[0].justify = "right"
    for place, step in enumerate(history[:_MOST_STEPS], 1):
        answer = screen.text(one_line(step.answer), "bold" if step.note else "")
        if step.note:
            note = f"\n{screen.symbol('fail')} {one_line(step.note)}"
            answer.append_text(screen.text(note, STYLES["fail"]))
        arguments = screen.text(one_line(step.arguments))
        table.add_row(str(place), screen.text(step.op), arguments, answer)
    screen.show(table, indent=3)
    if len(history) > _MOST_STEPS:
        screen.line(f"{len(history) - _MOST_STEPS} more steps are in the op log", indent=3)


def _reproduce(report: Report, finding: Finding, screen: Screen) -> None:
    failure = finding.failure
    screen.line("Reproduce with:", "bold", indent=3)
    screen.command(report.script_command(failure), indent=5)
    if command := report.replay_command(failure):
        screen.line("After a change of the target, check it with:", "bold", indent=3)
        screen.command(command, indent=5)
    if failure.related:
        screen.line(f"Related: {', '.join(failure.related)}", "dim", indent=3)


def _deaths(report: Report, screen: Screen) -> None:
    for event in report.shortest_deaths[:MOST_FAILURES]:
        screen.line()
        title = screen.text(f"  {event.target}: {event.kind}", "bold")
        screen.write(screen.mark("fail").append_text(title))
        screen.line(one_line(event.message), indent=3)
        _history(event.history[-5:], screen)
        for line in event.log.splitlines()[-8:]:
            screen.line(f"| {line}", "dim", indent=3)


def _evaluations(report: Report, screen: Screen) -> None:
    for found in evaluations_of(report.run.events):
        screen.heading(found.started.title)
        for line in found.started.lines:
            screen.line(line)
        for table in found.tables:
            if table.narrow:
                screen.heading(table.title)
                screen.figures(narrow(table))
                screen.line(table.note, "dim")


def _coverage(report: Report, screen: Screen) -> None:
    if not report.coverage:
        return
    screen.heading("Coverage")
    heads = ("suite", "cases", "time", "a second", "operations", "with hits")
    table = screen.table(*heads)
    for column in table.columns[1:]:
        column.justify = "right"
    for entry in report.exercised:
        cells = (
            f"{entry.test_cases:,}", duration(entry.seconds), entry.rate,
            f"{entry.operations.total():,}", entry.reused,
        )  # fmt: skip
        table.add_row(*map(screen.text, (entry.label, *cells)))
    screen.show(table)
    for entry in report.exercised:
        if entry.pairs:
            screen.line(f"{entry.label}, {pairs_line(entry.pairs)}")


def _bench(report: Report, screen: Screen) -> None:
    for title, groups in grouped(report.bench, lambda group: group.title).items():
        peers = sorted({e.peer for group in groups for e in group.entries if e.peer})
        over = f", ratios over {peers[0]}" if len(peers) == 1 else ""
        screen.heading(f"Bench on {title}, tokens/s by CPU time{over}")
        table = screen.table("block, case", "tokens/s", "ratio", "p50", "p99", "hits")
        for column in table.columns[1:]:
            column.justify = "right"
        for group in groups:
            table.add_row(screen.text(f"{group.block_size}, {case_words(group.case)}"))
            for entry in group.entries:
                target, *cells = _bench_cells(entry, named=not over)
                table.add_row(*map(screen.text, (f"  {target}", *cells)))
        screen.show(table)
        for line in _parts([entry for group in groups for entry in group.entries]):
            screen.line(line)
    _pairs(report, screen)


def _parts(entries: Sequence[BenchSummary]) -> list[str]:
    """Explain the marks of sides that have less to do."""
    lines = (
        f"{sides.PART} {entry.target}, {case_words(entry.case)}: without {entry.lacks}"
        for entry in entries
        if entry.lacks
    )
    return [*dict.fromkeys(lines)]


def _pairs(report: Report, screen: Screen) -> None:
    found = report.of(BenchPair)
    if len({pair.peer for pair in found}) < 2:
        return  # the ratios of the tables above
    screen.heading(sides.PAIRS)
    screen.figures(sides.narrow_pairs(found))


def _tiers(report: Report, screen: Screen) -> None:
    if not (found := report.of(TierSummary)):
        return
    screen.heading(tiers.TITLE)
    table = screen.table(*(tiers.HEADS[at] for at in tiers.NARROW))
    for column in table.columns[4:]:
        column.justify = "right"
    for each in tiers.measured(found):
        cells = tiers.row(each)
        table.add_row(*(screen.text(cells[at]) for at in tiers.NARROW))
    screen.show(table)


def _schedulers(report: Report, screen: Screen) -> None:
    if not (found := report.of(SchedulerPoint)):
        return
    screen.heading(schedulers.TITLE)
    table = screen.table(*(schedulers.HEADS[at] for at in schedulers.NARROW))
    for column in table.columns[2:]:
        column.justify = "right"
    for each in found:
        cells = schedulers.row(each)
        table.add_row(*(screen.text(cells[at]) for at in schedulers.NARROW))
    screen.show(table)


_RULES = {
    "engine_blocks": "any cache, as the engines hit (whole blocks, last token computed)",
    "hash_blocks": "any cache, as traces are published (every block counts)",
}


def _optimum(report: Report, screen: Screen) -> None:
    for points in report.optimum:
        first = points[0]
        screen.heading(
            f"Hit rate of {_RULES[first.rule]}: {first.workload}, block {first.block_size}"
        )
        table = screen.table("blocks", "LRU", "Belady", "LRU, tokens", "Belady, tokens")
        for column in table.columns:
            column.justify = "right"
        for point in points:
            table.add_row(*(screen.text(cell) for cell in _optimum_cells(point)))
        screen.show(table)


def _optimum_cells(point: Optimum) -> tuple[str, ...]:
    """The first row is an infinite cache, where LRU and Belady are the same."""
    rates = [point.lru, point.belady, point.lru_tokens, point.belady_tokens]
    if point.capacity is None:
        rates = [point.infinite, point.infinite, point.infinite_tokens, point.infinite_tokens]
    size = "infinite" if point.capacity is None else f"{point.capacity:,}"
    return (size, *("" if rate is None else percent(rate, 2) for rate in rates))


def _bench_cells(entry: BenchSummary, *, named: bool) -> tuple[str, ...]:
    shown, *_ = scaled_range(entry.tokens_per_second, entry.low, entry.high)
    ratio = "" if entry.ratio is None else f"{bound(entry)}{significant(entry.ratio)}"
    ratio = f"{ratio} over {entry.peer}" if ratio and named else ratio
    latencies = (microseconds(entry.p50_us), microseconds(entry.p99_us))
    target = f"{entry.target} {sides.PART}" if entry.lacks else entry.target
    return (target, shown, ratio, *latencies, percent(entry.hit_rate))


def _sweep(report: Report, screen: Screen) -> None:
    sweep = sweep_of(report.run.events)
    if sweep is None:
        return
    screen.heading(f"Kernels, {sweep.where}")
    screen.figures(narrow_standings(sweep))
    speedups = [(kernel, each) for kernel in sweep.kernels for each in kernel.speedups]
    for kernel, each in speedups:
        screen.line(
            f"{kernel.kernel.name}: {kernel.first} is {each.mean:.2f} times as fast as "
            f"{each.other} ({plural(len(each.ratios), 'cell')}: ahead in {each.ahead}, "
            f"behind in {each.behind})"
        )
    if sweep.neighbours:
        pair = sweep.neighbours[0]
        cell = names_of(sweep, pair.slow.cell.kernel)(pair.slow.cell.case)
        screen.line(
            f"widest gap between neighbours: {pair.ratio:.2f} along {pair.axis}, "
            f"{pair.slow.cell.kernel} {cell}"
        )


def _faults(report: Report, screen: Screen) -> None:
    matrix = matrix_of(report.run.events)
    if matrix is None:
        return
    screen.heading("Planted faults")
    screen.figures(narrow_kills(matrix))
    for data in summaries(matrix):
        screen.figures(data)
    screen.line(matrix.sentence)


def _thresholds(report: Report, screen: Screen) -> None:
    if not report.thresholds:
        return
    screen.heading("Thresholds")
    table = screen.table("threshold", "measured", "limit", "baseline", "verdict")
    for column in table.columns[1:4]:
        column.justify = "right"
    for event in report.thresholds:
        figures = (number(event.measured), number(event.limit))
        baseline = "" if event.baseline is None else number(event.baseline)
        cells = (screen.text(cell) for cell in (event.name, *figures, baseline))
        table.add_row(*cells, screen.mark(event.verdict))
    screen.show(table)


def _skipped(report: Report, screen: Screen) -> None:
    if report.skipped:
        screen.heading("Skipped")
    for event in report.skipped:
        screen.line(f"{event.part}: {one_line(event.reason)}")
        if event.command:
            screen.command(event.command, indent=2)


def _verdict(report: Report, screen: Screen) -> None:
    outcome = report.outcome
    screen.line()
    word = screen.text(f" {outcome.word} ", TONES[outcome.tone])
    screen.write(word.append_text(screen.text(f" {one_line(outcome.sentence)}", "bold")))
    if not outcome.closed:
        torn = f"; {plural(report.run.torn, 'line')} could not be read" if report.run.torn else ""
        screen.line(f"The run has no closing event: it was killed{torn}.")
    screen.line(f"{duration(report.seconds)}, repeat with: {report.command}", "dim")
    page = report.run.directory / "report.html"
    if page.exists():
        screen.line(f"Report:  {page}")
    screen.line(f"Records: {report.run.directory}")
