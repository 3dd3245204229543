"""`history`."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape
from rich.table import Table

from kvproof.harness.analysis.duckdb import query
from kvproof.harness.analysis.history import history as look
from kvproof.harness.analysis.history import read_history
from kvproof.harness.cli.output import standard_output
from kvproof.harness.records.run_directory import store
from kvproof.harness.settings import load_settings
from kvproof.reports.render.history_page import render_history, sentence
from kvproof.reports.values.text import clean


def history(
    directory: Path,
    /,
    *,
    output: Path = Path("history.html"),
    sql: str = "",
    config: Path | None = None,
) -> None:
    """Put many runs on one page: trends with change points, age of expected failures, faults.

    Parameters
    ----------
    directory
        Folder of runs, searched with all folders below it.
    output
        The page.
    sql
        Ask DuckDB instead (extra duckdb): a query over the tables runs and events.
    config
        Settings file; thresholds of [compare.threshold] hold for changes of level too.

    """
    if sql:
        _ask(directory, sql)
        return
    runs, unreadable = read_history(directory)
    found = look(runs, load_settings(config).compare.threshold, unreadable)
    store(output, render_history(found).encode("utf-8", "backslashreplace"))
    console = standard_output()
    console.print(sentence(found), markup=False, highlight=False)
    for line in unreadable:
        console.print(f"not read: {clean(line)}", markup=False, highlight=False)
    console.print(f"Report:  {output}", markup=False, highlight=False, soft_wrap=True)


def _ask(directory: Path, sql: str) -> None:
    found = query(directory, sql)
    table = Table(box=None, pad_edge=False)
    for column in found.columns:
        table.add_column(escape(clean(column)), overflow="fold")
    for row in found.rows:
        table.add_row(*(escape(clean(str(value))) for value in row))
    standard_output().print(table)
