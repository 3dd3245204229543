"""The process of a fault: plants it, judges it, and sends the verdict to its host.

All imports of the reference come after planting.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kvproof.harness.isolation.host import Host
from kvproof.suites.faults.catalogue import KERNELS, PlantedFault, in_engine
from kvproof.suites.faults.messages import Job, Line, Progress, read_job
from kvproof.suites.faults.planters import AtImport, Live

if TYPE_CHECKING:
    from kvproof.harness.isolation.handles import Handle
    from kvproof.harness.records.fault_events import FaultJudged

FAILS_WITHOUT = "the engine fails without it, too"
"""Why a fault is left out."""
_EVERY = 0.5
"""Seconds between two progress messages."""


class _Progress:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._next = 0.0

    def __call__(self, suite: str, done: int) -> None:
        """Send progress now and then."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY
            self._host.write(Progress(suite=suite, done=done))


class _Files:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write_file(self, name: str, data: bytes) -> Path:
        """Store a file below the fault's folder."""
        from kvproof.harness.records.run_directory import store

        return store(self._folder / name, data)


def main() -> None:
    """Judge the job in each line of input; the end of the host ends this process.

    A fault of the reference stays in its process, which is for one job.
    """
    host = Host()
    for line in host:
        job = read_job(line)
        host.write(_verdict(job.fault, job, _Progress(host)))


def _verdict(fault: PlantedFault, job: Job, progress: _Progress) -> Line:
    if in_engine(fault):
        return _of_engine(_live(fault.target), fault, job, progress)
    with AtImport().planted(fault) as handle:
        if fault.suite == KERNELS:
            from kvproof.suites.faults.kernels import judge

            return judge(fault, progress=lambda done: progress(fault.property, done))
        return _judged(handle, fault, job, progress)


@cache
def _live(target: str) -> Live:
    from kvproof.harness.isolation.registry import open_handle

    return Live(open_handle(target))


def _of_engine(planter: Live, fault: PlantedFault, job: Job, progress: _Progress) -> FaultJudged:
    """Judge a fault in the engine's process, which is kept for the next one if it is sound.

    A process keeps traces of earlier histories, identifiers for example. So a fault that survives
    in a used one, or is found by a history that fails without it, is judged again in a new process.
    There the history that finds it has to pass in another new process without a planted fault; if
    it fails there, the fault is left out.
    Suites that a fault has survived are kept for a run that goes on only if its process was new. A
    drawn fault has a new one at once: many survive, and their suites would run twice.
    """
    from kvproof.suites.faults.verdict import judged

    if fault.promise and planter.used:
        planter.renew()
    used = planter.used
    event = _planted(planter, fault, job, progress)
    if (used and event.kill is None) or _fails_without(planter.handle, event, job):
        planter.renew()
        event = _planted(planter, fault, job, progress)
        planter.renew()
        if _fails_without(planter.handle, event, job):
            return judged(fault, None, reason=FAILS_WITHOUT, left_out=True, cases=event.cases)
    return event


def _planted(planter: Live, fault: PlantedFault, job: Job, progress: _Progress) -> FaultJudged:
    kept = not planter.used
    with planter.planted(fault) as handle:
        return _judged(handle, fault, job, progress, kept=kept)


def _fails_without(handle: Handle, event: FaultJudged, job: Job) -> bool:
    """Whether the history that shows a fault fails on the engine as it is now, without it.

    Another property proves nothing: an operation may be possible only with the fault.
    """
    from kvproof.suites.runner.replay import property_of, replay

    if event.kill is None or not event.kill.op_log:
        return False
    again = replay(handle, Path(job.directory, event.kill.op_log))
    same = property_of(again) == event.kill.property
    return again.outcome == "FAILED" and same and not again.known


def _judged(
    handle: Handle, fault: PlantedFault, job: Job, progress: _Progress, *, kept: bool = True
) -> FaultJudged:
    from kvproof.suites.faults.judge import Judge
    from kvproof.suites.faults.reach import load
    from kvproof.suites.faults.survived import FILE, Survived
    from kvproof.suites.framework.budgets import BUDGETS, seeded

    budget = BUDGETS[job.budget]
    if job.seed is not None:
        budget = seeded(budget, None)
    folder = f"faults/{fault.name}/"
    judge = Judge(
        handle,
        _Files(Path(job.directory) / folder),
        folder=folder,
        budget=budget,
        seed=job.seed,
        alone=job.alone,
        progress=progress,
        reach=load(Path(job.reach), job.budget) if job.reach else None,
        survived=Survived(Path(job.directory) / folder / FILE if kept else None),
    )
    return judge.judge(fault)


if __name__ == "__main__":
    main()
