"""The process of one fault: plants it, judges it, and says so on its standard output.

Everything that imports the reference is imported after planting.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec

from kvproof.suites.faults.catalogue import KERNELS, Fault, find
from kvproof.suites.faults.messages import Job, Line, Said
from kvproof.suites.faults.planting import plant

_EVERY = 0.5
"""Seconds between two words about progress."""


class _Teller:
    """Writes lines to the parent; what the suites print goes to standard error."""

    def __init__(self) -> None:
        self._sink = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        self._next = 0.0

    def say(self, line: Line) -> None:
        """Write one line."""
        self._sink.write(msgspec.json.encode(line) + b"\n")

    def progress(self, suite: str, done: int) -> None:
        """Say how far it is, now and then."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY
            self.say(Said(suite=suite, done=done))


class _Files:
    """Stores op logs and scripts of one fault."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write_file(self, name: str, data: bytes) -> Path:
        """Store a file below the fault's folder."""
        from kvproof.harness.records.run_directory import store

        return store(self._folder / name, data)


def main() -> None:
    """Do the job that standard input holds."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    teller, fault = _Teller(), find(job.fault)
    plant(fault)
    if fault.suite == KERNELS:
        _kernels(fault, teller)
    else:
        _suites(fault, job, teller)


def _kernels(fault: Fault, teller: _Teller) -> None:
    from kvproof.suites.faults.kernels import judge

    teller.say(judge(fault, progress=lambda done: teller.progress(fault.property, done)))


def _suites(fault: Fault, job: Job, teller: _Teller) -> None:
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
            progress=teller.progress,
        )
        teller.say(judge.judge(fault))


if __name__ == "__main__":
    main()
