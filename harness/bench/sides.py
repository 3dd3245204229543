"""The sides of a bench, each in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from kvproof.harness.contract.profile import Profile
from kvproof.harness.isolation.handles import Isolation
from kvproof.harness.isolation.worker_handle import WorkerHandle
from kvproof.harness.scratch import scratch

_OWN = "kvproof."


class JobRunner(Protocol):
    """Runs jobs where an engine lives."""

    @property
    def name(self) -> str:
        """The target's name in records."""

    @property
    def factory(self) -> str:
        """`pkg.module:make_target`; the module may offer `make_cycle`, `LOOP` and `TIERS` too."""

    def run_job(self, job: str, arguments: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        """Run a job where the engine lives. Raises TargetDied."""


class Runner(JobRunner, Protocol):
    """The part of a handle that benchmarks use."""

    @property
    def isolation(self) -> Isolation:
        """Whether jobs run in this process."""

    @property
    def profile(self) -> Profile:
        """Raises TargetDied if the target does not start."""


@contextmanager
def isolated(runners: Sequence[Runner]) -> Iterator[list[Runner]]:
    """Run in-process targets in workers too; a user's stays: only this process can import it."""
    with ExitStack() as stack:
        logs = stack.enter_context(scratch("kvproof-bench-"))
        separate: list[Runner] = []
        for runner in runners:
            if runner.isolation == "in_process" and runner.factory.startswith(_OWN):
                worker = WorkerHandle(
                    runner.name, Path(sys.executable), runner.factory, logs / f"{len(separate)}.log"
                )
                separate.append(stack.enter_context(worker))
            else:
                separate.append(runner)
        yield separate
