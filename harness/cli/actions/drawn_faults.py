"""The sample of `kvproof faults --sample`: executed lines, then the faults drawn over them.

Both are files of the run, so that the same command goes on with the same faults.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from kvproof.harness.cli.runs import ActiveRun
from kvproof.harness.errors import UsageError
from kvproof.reports.values.text import plural
from kvproof.suites.faults.catalogue import PlantedFault
from kvproof.suites.faults.drawn.executed import modules, recorded
from kvproof.suites.faults.drawn.sample import draw
from kvproof.suites.faults.drawn.unobservable import marked
from kvproof.suites.faults.reach import Reach, load

SAMPLE, REACH = "sample.json", "reach.json"
"""Files of a run: the faults; which suite executes which line of the subject."""


class Sample(msgspec.Struct, frozen=True):
    """The faults of a run."""

    source: str
    """Their number, the lines that they are drawn from, and the seed, in words."""
    faults: list[PlantedFault]


def drawn(
    active: ActiveRun, target: str, size: int, seed: int, reach: Path | None
) -> tuple[Sample, Path]:
    """Return a sample, and the record of executed lines. Raises UsageError, TargetDied."""
    folder = active.writer.directory
    reach = reach or _copied(active, target, folder / REACH)
    path = folder / SAMPLE
    if not path.exists():
        sample = _draw(load(reach, "pr"), size, seed, target)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(sample), indent=1))
    return msgspec.json.decode(path.read_bytes(), type=Sample), reach


def _copied(active: ActiveRun, target: str, path: Path) -> Path:
    def begun(suite: str) -> None:
        active.status("executed lines", suite)

    if not path.exists():
        shutil.copyfile(recorded(target, begun), path)
    return path


def _draw(reach: Reach, size: int, seed: int, target: str) -> Sample:
    found = draw(modules(reach), size, seed, target)
    if not found.faults:
        raise UsageError(
            f"no fault can be drawn over the {plural(found.lines, 'executed line')} of {target}",
            "look at its suites first: kvproof run --target " + target,
        )
    first = f" in the first {reach.histories} histories of each suite" if reach.histories else ""
    source = (
        f"{plural(len(found.faults), 'fault')} drawn over {plural(found.lines, 'executed line')}"
        f"{first}, seed {seed}; passed over: {plural(found.plain, 'line')} that no operator changes"
    )
    return Sample(source, marked(found.faults))
