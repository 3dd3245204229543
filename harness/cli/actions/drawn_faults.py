"""The sample of `kvproof faults --sample`: executed lines, then the faults drawn over them.

Both are files of the run, so that the same command goes on with the same faults.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvproof.harness.cli.runs import ActiveRun
from kvproof.reports.values.text import plural
from kvproof.suites.faults.catalogue import SUBJECT, PlantedFault
from kvproof.suites.faults.drawn.executed import of_engine, of_reference
from kvproof.suites.faults.drawn.sample import Executed, draw
from kvproof.suites.faults.drawn.unobservable import marked
from kvproof.suites.faults.reach import SuiteReach, load
from kvproof.suites.faults.trace import record

SAMPLE, REACH, EXECUTED = "sample.json", "reach.json", "executed.json"
"""Files of a run: the faults; which suite executes which line of the reference, or of an engine."""


class Sample(msgspec.Struct, frozen=True):
    """The faults of a run."""

    source: str
    """Their number, the lines that they are drawn from, and the seed, in words."""
    faults: list[PlantedFault]


def drawn(
    active: ActiveRun, target: str, size: int, seed: int, reach: Path | None
) -> tuple[Sample, Path | None]:
    """Return a sample, and the record of executed lines if there is one.

    Raises UsageError, TargetDied.
    """
    folder = active.writer.directory
    if target == SUBJECT:
        reach = reach or _recorded(active, folder / REACH)
    path = folder / SAMPLE
    if not path.exists():
        lines = of_reference(load(reach, "pr")) if reach else _of_engine(active, target, folder)
        sample = _draw(lines, size, seed, target)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(sample), indent=1))
    return msgspec.json.decode(path.read_bytes(), type=Sample), reach


def _recorded(active: ActiveRun, path: Path) -> Path:
    def said(name: str, suite: SuiteReach) -> None:
        active.status("executed lines", f"{name}, {suite.test_cases} cases", 0, 0)

    done = path.with_name(f"{REACH}.part")
    if not path.exists():
        record(done, said)
        done.rename(path)
    return path


def _of_engine(active: ActiveRun, target: str, folder: Path) -> list[Executed]:
    def said(suite: str) -> None:
        active.status("executed lines", suite, 0, 0)

    return of_engine(target, folder / EXECUTED, said)


def _draw(modules: list[Executed], size: int, seed: int, target: str) -> Sample:
    found = draw(modules, size, seed, target)
    source = (
        f"{plural(len(found.faults), 'fault')} drawn over {plural(found.lines, 'executed line')}, "
        f"seed {seed}; passed over: {plural(found.plain, 'line')} that no operator changes"
    )
    return Sample(source, marked(found.faults))
