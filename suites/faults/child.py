"""The process of one fault: plants it, judges it, and sends the verdict to its host.

All imports of the reference come after planting.
"""

from __future__ import annotations

import time
from pathlib import Path

from kvproof.harness.isolation.host import Host
from kvproof.suites.faults.catalogue import KERNELS, Fault, find
from kvproof.suites.faults.messages import Job, Line, Progress, read_job
from kvproof.suites.faults.planting import plant

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
    """Judge the job in the first line of input; the end of the host ends this process."""
    host = Host()
    job = read_job(next(iter(host)))
    fault, progress = find(job.fault), _Progress(host)
    plant(fault)
    if fault.suite == KERNELS:
        host.write(_kernels(fault, progress))
    else:
        host.write(_suites(fault, job, progress))


def _kernels(fault: Fault, progress: _Progress) -> Line:
    from kvproof.suites.faults.kernels import judge

    return judge(fault, progress=lambda done: progress(fault.property, done))


def _suites(fault: Fault, job: Job, progress: _Progress) -> Line:
    from kvproof.harness.isolation.registry import open_handle
    from kvproof.suites.faults.judge import Judge
    from kvproof.suites.framework.budgets import BUDGETS, seeded

    budget = BUDGETS[job.budget]
    if job.seed is not None:
        budget = seeded(budget, None)
    folder = f"faults/{fault.name}/"
    with open_handle(fault.target) as handle:
        judge = Judge(
            handle,
            _Files(Path(job.directory) / folder),
            folder=folder,
            budget=budget,
            seed=job.seed,
            progress=progress,
        )
        return judge.judge(fault)


if __name__ == "__main__":
    main()
