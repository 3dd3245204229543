"""The process of one fault: plants it, judges it, and sends the verdict to its host.

All imports of the reference come after planting.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import BinaryIO

from kvproof.harness.isolation.pool import encode
from kvproof.harness.isolation.worker_main import end_with_host, take_pipes
from kvproof.suites.faults.catalogue import KERNELS, Fault, find
from kvproof.suites.faults.messages import Job, Line, Progress, read_job
from kvproof.suites.faults.planting import plant

_EVERY = 0.5
"""Seconds between two progress messages."""


class _Host:
    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._next = 0.0

    def write(self, line: Line) -> None:
        """Write one line."""
        self._sink.write(encode(line) + b"\n")
        self._sink.flush()

    def progress(self, suite: str, done: int) -> None:
        """Send progress now and then."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY
            self.write(Progress(suite=suite, done=done))


class _Files:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write_file(self, name: str, data: bytes) -> Path:
        """Store a file below the fault's folder."""
        from kvproof.harness.records.run_directory import store

        return store(self._folder / name, data)


def main() -> None:
    """Judge the job in the first line of input; the end of the host ends this process."""
    source, sink = take_pipes()
    job = read_job(source.readline())
    threading.Thread(target=end_with_host, args=[source.fileno()], daemon=True).start()
    host, fault = _Host(sink), find(job.fault)
    plant(fault)
    if fault.suite == KERNELS:
        _kernels(fault, host)
    else:
        _suites(fault, job, host)


def _kernels(fault: Fault, host: _Host) -> None:
    from kvproof.suites.faults.kernels import judge

    host.write(judge(fault, progress=lambda done: host.progress(fault.property, done)))


def _suites(fault: Fault, job: Job, host: _Host) -> None:
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
            progress=host.progress,
        )
        host.write(judge.judge(fault))


if __name__ == "__main__":
    main()
