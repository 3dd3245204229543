"""`kvproof history`."""

from __future__ import annotations

from pathlib import Path


def history(
    directory: Path,
    /,
    *,
    output: Path = Path("history.html"),
    sql: str = "",
    config: Path | None = None,
) -> None:
    """Show the trends of many runs on one page.

    The page has change points, the age of expected failures, and the faults that survived.

    Parameters
    ----------
    directory
        Folder of runs, searched with all folders below it.
    output
        File of the page.
    sql
        Ask DuckDB instead (extra duckdb): a query over the tables runs and events.
    config
        Settings file; thresholds of [compare.threshold] hold for changes of level too.

    """
    from kvproof.harness.cli.actions import compare as action

    if sql:
        action.print_answer(directory, sql)
    else:
        action.history(directory, output=output, config=config)
