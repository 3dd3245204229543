"""The process of a fault: plants it, judges it, and sends the verdict to its host.

All imports of the reference come after planting.
"""

from __future__ import annotations

import time
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from kvproof.harness.isolation.host import Host
from kvproof.suites.faults.catalogue import KERNELS, Fault, find, in_engine
from kvproof.suites.faults.messages import Job, Line, Progress, read_job
from kvproof.suites.faults.planting import plant

if TYPE_CHECKING:
    from kvproof.harness.isolation.handles import Handle
    from kvproof.harness.isolation.worker_handle import WorkerHandle
    from kvproof.harness.records.fault_events import FaultJudged

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
        fault, progress = find(job.fault), _Progress(host)
        if in_engine(fault):
            host.write(_engine(fault, job, progress))
            continue
        plant(fault)
        judge = _kernels if fault.suite == KERNELS else partial(_reference, job)
        host.write(judge(fault, progress))


def _kernels(fault: Fault, progress: _Progress) -> Line:
    from kvproof.suites.faults.kernels import judge

    return judge(fault, progress=lambda done: progress(fault.property, done))


def _reference(job: Job, fault: Fault, progress: _Progress) -> Line:
    from kvproof.harness.isolation.registry import open_handle

    with open_handle(fault.target) as handle:
        return _judged(handle, fault, job, progress)


def _engine(fault: Fault, job: Job, progress: _Progress) -> Line:
    """Judge a fault in the engine's process, which is kept for the next one if it is sound.

    What one fault left in the engine must not pass for a symptom of the next: a failure that the
    engine shows without the fault too is judged again in a new process.
    """
    from kvproof.suites.faults.verdict import judged

    for _ in range(2):
        event = _planted(fault, job, progress)
        if not _fails_without(fault, event, job):
            return event
        _worker(fault.target).close()
    return judged(fault, None, reason="the engine fails without it, too", cases=event.cases)


def _planted(fault: Fault, job: Job, progress: _Progress) -> FaultJudged:
    """Plant, judge, take the fault back."""
    from kvproof.harness.whole_engine.planting import CLEAR, PLANT

    handle = _worker(fault.target)
    with handle.prepared(PLANT, {"module": fault.module, "old": fault.old, "new": fault.new}):
        event = _judged(handle, fault, job, progress)
    handle.run_job(CLEAR, {}, timeout=60)
    return event


def _fails_without(fault: Fault, event: FaultJudged, job: Job) -> bool:
    """Whether the history that shows a fault fails on the engine as it is now, without it."""
    from kvproof.suites.runner.replay import replay

    if event.kill is None or not event.kill.op_log:
        return False
    again = replay(_worker(fault.target), Path(job.directory, event.kill.op_log))
    return again.outcome == "FAILED" and not again.known


@cache
def _worker(target: str) -> WorkerHandle:
    from kvproof.harness.isolation.registry import open_handle
    from kvproof.harness.isolation.worker_handle import WorkerHandle

    handle = open_handle(target)
    assert isinstance(handle, WorkerHandle), target
    return handle


def _judged(handle: Handle, fault: Fault, job: Job, progress: _Progress) -> FaultJudged:
    from kvproof.suites.faults.judge import Judge
    from kvproof.suites.faults.reach import load
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
        progress=progress,
        reach=load(Path(job.reach), job.budget) if job.reach else None,
    )
    return judge.judge(fault)


if __name__ == "__main__":
    main()
