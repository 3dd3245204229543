"""`merge`."""

from __future__ import annotations

from pathlib import Path

from kvproof.harness.analysis.merge import files_of
from kvproof.harness.analysis.merge import merge as merge_runs
from kvproof.harness.analysis.sides import run_directories
from kvproof.harness.cli.output import standard_output
from kvproof.harness.cli.runs import run_directory
from kvproof.harness.errors import UsageError
from kvproof.harness.records.run_directory import read_run


def merge(directories: list[Path], /, *, output: Path) -> None:
    """Make one record, with its reports and its exit code, of the runs of separate jobs.

    Parameters
    ----------
    directories
        Run directories, or folders of several, all of one commit.
    output
        Directory of the merged record.

    """
    found = [place for given in directories for place in run_directories(given)]
    runs = [read_run(place) for place in dict.fromkeys(path.resolve() for path in found)]
    if len(runs) < 2:
        raise UsageError(f"{str(runs[0].directory)!r} is one run", "name two runs or more")
    merged = merge_runs(runs)
    config = {
        "merged": [run.manifest.id for run in runs],
        "versions": merged.versions,
        "hardware": merged.hardware,
    }
    with run_directory("merge", config=config, output=output, console=standard_output()) as active:
        for event in merged.events:
            active.write(event)
        files_of(runs, active.writer.write_file)
