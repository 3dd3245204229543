"""`kvproof report` and `kvproof merge`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvproof.eval.divergence import records as divergence_records
from kvproof.eval.run.files import is_run
from kvproof.eval.scbench import records as scbench_records
from kvproof.harness.analysis.merge import files_of
from kvproof.harness.analysis.merge import merge as merge_runs
from kvproof.harness.analysis.sides import run_directories
from kvproof.harness.cli.actions import divergence
from kvproof.harness.cli.actions import eval as evaluation
from kvproof.harness.cli.output import standard_output
from kvproof.harness.cli.runs import publish, run_directory
from kvproof.harness.errors import UsageError
from kvproof.harness.records.run_directory import read_run


def render_again(directory: Path, formats: Sequence[str]) -> None:
    """Render the reports of a run from its records. Raises UsageError."""
    if is_run(directory, divergence_records.KEY):
        divergence.publish(directory, standard_output())
    elif is_run(directory, scbench_records.KEY):
        evaluation.publish_scbench(directory)
    elif evaluation.is_eval(directory):
        evaluation.publish(directory, standard_output())
    else:
        publish(directory, standard_output(), formats)


def merge(directories: Sequence[Path], *, output: Path) -> int:
    """Record the events of several runs as one run; returns its exit code. Raises UsageError."""
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
    with run_directory("merge", config=config, output=output) as active:
        for event in merged.events:
            active.write(event)
        files_of(runs, active.writer.write_file)
    return active.exit_code
