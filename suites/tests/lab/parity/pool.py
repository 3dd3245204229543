"""Jobs in processes of their own: their results survive a crash and a deadline."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from kvproof.harness.isolation.pool import Worker, WorkerLost, run_on_pool
from kvproof.suites.tests.lab.parity.cells import Cell
from kvproof.suites.tests.lab.parity.job import Job, crashed
from kvproof.suites.tests.lab.parity.worker_main import Finished, Line, read_line

SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "HF_HUB_OFFLINE": "1",
}
"""Environment of the processes: equal results, and no downloads."""

COMMAND = (sys.executable, "-m", "kvproof.suites.tests.lab.parity.worker_main")


class News(NamedTuple):
    """One cell of a job, or its end."""

    job: Job
    cell: Cell | None
    done: bool


def compute(todo: Sequence[Job], *, processes: int, seconds: float = 0) -> Iterator[News]:
    """Run jobs in parallel; after `seconds` unfinished ones are given up (0: never).

    A process that raised is not used again: after a fault of a GPU, all its further results are
    wrong.
    """
    deadline = time.monotonic() + (seconds or math.inf)

    def work(worker: Worker[Line], job: Job) -> Iterator[News]:
        return _compute(worker, job, deadline)

    with TemporaryDirectory(prefix="kvproof-parity-") as logs:
        workers = [
            Worker(
                COMMAND,
                Path(logs, f"{number}.log"),
                decode=read_line,
                environment={**os.environ, **SETTINGS},
            )
            for number in range(min(processes, len(todo)))
        ]
        with closing(run_on_pool(workers, todo, work)) as news:
            yield from news


def _compute(worker: Worker[Line], job: Job, deadline: float) -> Iterator[News]:
    if time.monotonic() >= deadline:
        return
    try:
        worker.send(job, deadline - time.monotonic())
        while not isinstance(line := worker.receive(deadline - time.monotonic()), Finished):
            yield News(job, line.cell, done=False)
        if not line.healthy:
            worker.end()
        yield News(job, None, done=True)
    except WorkerLost as lost:
        if lost.kind != "timeout":
            yield News(job, crashed(job, str(lost)), done=True)
