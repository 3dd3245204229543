"""`kvproof report`, `merge` and `history`: one run, several runs as one, or over time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def report(
    directory: Path,
    /,
    *,
    formats: Annotated[list[str] | None, Parameter(("--format", "--formats"))] = None,
) -> None:
    """Write the reports of a run again.

    Writes report.html, report.md and junit.xml, also for a run that was killed.

    Ends with 0 once the reports are written, also for a run that failed: the verdict has had its
    exit code already. Ends with 2 if the directory holds no run.

    Parameters
    ----------
    directory
        A run's directory, for example runs/latest.
    formats
        html, markdown, junit; all by default.

    """
    from kvproof.harness.cli.actions import reports

    reports.render_again(directory, formats or ())


def merge(directories: list[Path], /, *, output: Path) -> int:
    """Merge the runs of separate jobs into one, with reports and an exit code.

    Parameters
    ----------
    directories
        Run directories, or folders of several, all of one commit.
    output
        Directory of the merged record.

    """
    from kvproof.harness.cli.actions import reports

    return reports.merge(directories, output=output)


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
