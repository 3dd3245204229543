"""`kvproof report` and `kvproof merge`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from kvproof.eval.kinds import judged
from kvproof.harness.analysis.merge import files_of
from kvproof.harness.analysis.merge import merge as merge_runs
from kvproof.harness.analysis.sides import run_directories
from kvproof.harness.cli.output import standard_output
from kvproof.harness.cli.runs import publish_run, run_directory
from kvproof.harness.errors import UsageError
from kvproof.harness.records.eval_events import EvalConcluded
from kvproof.harness.records.events import Ended
from kvproof.harness.records.run_directory import Run, read_run


def render_again(directory: Path, formats: Sequence[str]) -> None:
    """Render the reports of a run from its records. Raises UsageError."""
    run = read_run(directory)
    if run.manifest.verb == "eval" and not any(isinstance(e, EvalConcluded) for e in run.events):
        run = _with_verdicts(run)
    publish_run(run, standard_output(), formats)


def _with_verdicts(run: Run) -> Run:
    """Return the run with the verdicts so far: an evaluation that was cut short has answers."""
    at = len(run.events) - (bool(run.events) and isinstance(run.events[-1], Ended))
    events = [*run.events[:at], *judged(run.directory).events(), *run.events[at:]]
    return replace(run, events=events)


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
