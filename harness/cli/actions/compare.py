"""`kvproof compare`, `kvproof baseline save` and `kvproof history`: several runs together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from kvproof.harness.analysis.bench_ratios import agreements
from kvproof.harness.analysis.compare import Comparison
from kvproof.harness.analysis.compare import compare as compare_sides
from kvproof.harness.analysis.duckdb import query
from kvproof.harness.analysis.history import history as look
from kvproof.harness.analysis.history import read_history
from kvproof.harness.analysis.record import comparison_json
from kvproof.harness.analysis.sides import read_side
from kvproof.harness.analysis.sides import save_baseline as keep
from kvproof.harness.cli.output import print_text, standard_output, table_of
from kvproof.harness.errors import Exit, UsageError
from kvproof.harness.records.run_directory import refuse_record, store
from kvproof.harness.settings import load_settings
from kvproof.reports.render.compare_page import html, markdown, print_comparison
from kvproof.reports.render.history_page import render_history, sentence
from kvproof.reports.render.markdown import append_step_summary
from kvproof.reports.values.text import clean


def compare(base: Path, head: Path, *, output: Path | None, json: bool, config: Path | None) -> int:
    """Compare two sides, print and store the comparison; returns the exit code."""
    if output is not None:
        refuse_record(output)
    settings = load_settings(config).compare
    baselines = Path(settings.baselines)
    found = compare_sides(read_side(base, baselines), read_side(head, baselines), settings)
    if output is not None:
        _write(found, output)
    append_step_summary(markdown(found))
    _print(found, output, json=json)
    return int(found.code)


def compare_ratios(base: Path, head: Path, *, config: Path | None) -> int:
    """Print the ratios of two benches side by side; returns the exit code. Raises UsageError."""
    baselines = Path(load_settings(config).compare.baselines)
    runs = (read_side(base, baselines), read_side(head, baselines))
    if any(len(side) > 1 for side in runs):
        raise UsageError("a side has several runs", "give the directory of one run of each")
    found, alone = agreements(runs[0][0], runs[1][0])
    table = table_of("", "case", "of", "over", "base", "head", "apart")
    for each in found:
        case, detail, above, below = map(clean, each.key)
        figures = (f"{each.base:.3g}", f"{each.head:.3g}", f"{each.apart:.2f}")
        mark = "" if each.agrees else "differs"
        table.add_row(*map(escape, (mark, f"{case}, {detail}", above, below, *figures)))
    standard_output().print(table)
    for key in alone:
        print_text(f"in one of them only: {clean(', '.join(key))}")
    agree = sum(each.agrees for each in found)
    print_text(f"{agree} of {len(found)} ratios agree within 10 %; {len(alone)} are in one only")
    return int(Exit.PASS if agree == len(found) else Exit.REGRESSION)


def _write(found: Comparison, output: Path) -> None:
    store(output / "comparison.json", comparison_json(found))
    for name, text in (("comparison.md", markdown(found)), ("comparison.html", html(found))):
        store(output / name, text.encode("utf-8", "backslashreplace"))


def _print(found: Comparison, output: Path | None, *, json: bool) -> None:
    if json:
        text = comparison_json(found).decode()
        print_text(text)
        return
    print_comparison(found, standard_output())
    if output is not None:
        print_text(f"Report:  {output / 'comparison.html'}")


def save_baseline(runs: Sequence[Path], *, name: str, replace: bool, config: Path | None) -> None:
    """Copy the records of runs into a baseline. Raises UsageError."""
    baselines = Path(load_settings(config).compare.baselines)
    kept, count = keep(runs, name, baselines, replace=replace)
    text = f"baseline {name}: {count} run{'' if count == 1 else 's'} in {kept}"
    print_text(text)


def history(directory: Path, *, output: Path, config: Path | None) -> None:
    """Write the page, and print a sentence about it. Raises UsageError."""
    refuse_record(output.parent)
    runs, unreadable = read_history(directory)
    found = look(runs, load_settings(config).compare.threshold, unreadable)
    store(output, render_history(found).encode("utf-8", "backslashreplace"))
    print_text(sentence(found))
    for line in unreadable:
        print_text(f"not read: {clean(line)}")
    print_text(f"Report:  {output}")


def print_answer(directory: Path, sql: str) -> None:
    """Print the rows that DuckDB returns for a query. Raises UsageError."""
    found = query(directory, sql)
    table = table_of(*(escape(clean(column)) for column in found.columns))
    for row in found.rows:
        table.add_row(*(escape(clean(str(value))) for value in row))
    standard_output().print(table)
