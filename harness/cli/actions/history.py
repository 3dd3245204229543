"""`kvproof history`: many runs on one page, or a query over their records."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape

from kvproof.harness.analysis.duckdb import query
from kvproof.harness.analysis.history import history as look
from kvproof.harness.analysis.history import read_history
from kvproof.harness.cli.output import print_text, standard_output, table_of
from kvproof.harness.records.run_directory import store
from kvproof.harness.settings import load_settings
from kvproof.reports.render.history_page import render_history, sentence
from kvproof.reports.values.text import clean


def history(directory: Path, *, output: Path, config: Path | None) -> None:
    """Write the page, and print a sentence about it. Raises UsageError."""
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
