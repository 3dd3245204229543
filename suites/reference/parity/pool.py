"""Jobs in processes of their own: what is computed survives a crash and a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple, TypeAlias

from kvproof.suites.reference.parity.cells import Cell
from kvproof.suites.reference.parity.job import Job, crashed, run

SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "HF_HUB_OFFLINE": "1",
}
"""Environment of the processes, read when they begin: equal results, and nothing is fetched."""


class News(NamedTuple):
    """What became known of a job."""

    job: Job
    cell: Cell | None
    done: bool


_Ours: TypeAlias = "Connection[Job, Cell | None]"
_Theirs: TypeAlias = "Connection[Cell | None, Job]"


class _Worker(NamedTuple):
    """A process and what it is at."""

    process: BaseProcess
    pipe: _Ours
    job: Job


def compute(todo: Sequence[Job], *, processes: int, seconds: float = 0) -> Iterator[News]:
    """Compute jobs side by side; after `seconds` what is not finished is given up (0: never).

    A process in which something was raised is not used again: after a fault of a GPU, all that
    it would compute is wrong.
    """
    os.environ.update(SETTINGS)
    end = time.monotonic() + seconds
    waiting = list(reversed(todo))
    busy = [_begin(waiting.pop()) for _ in range(min(processes, len(todo)))]
    try:
        while busy and (heard := wait([each.pipe for each in busy], _left(seconds, end))):
            for worker in [each for each in busy if each.pipe in heard]:
                news, again = _hear(worker)
                yield news
                if news.done:
                    busy.remove(worker)
                    busy += _next(worker if again else None, waiting)
    finally:
        for worker in busy:
            worker.process.kill()
            worker.process.join()


def _left(seconds: float, end: float) -> float | None:
    return max(0.0, end - time.monotonic()) if seconds else None


def _begin(job: Job) -> _Worker:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    ours.send(job)
    return _Worker(process, ours, job)


def _hear(worker: _Worker) -> tuple[News, bool]:
    """Return what a process has sent, and whether it takes another job."""
    try:
        cell = worker.pipe.recv()
    except (EOFError, ConnectionError):
        worker.process.join()
        code = worker.process.exitcode
        died = crashed(worker.job, f"its process ended with exit code {code}") if code else None
        return News(worker.job, died, done=True), False
    return News(worker.job, cell, done=cell is None), True


def _next(worker: _Worker | None, waiting: list[Job]) -> list[_Worker]:
    """Let a process go on, or a new one begin, if a job is left."""
    if waiting and worker is None:
        return [_begin(waiting.pop())]
    if worker is None:
        return []
    if not waiting:
        worker.pipe.close()
        worker.process.join()
        return []
    job = waiting.pop()
    worker.pipe.send(job)
    return [worker._replace(job=job)]


def _work(pipe: _Theirs) -> None:
    """Compute one job after the other, until there is none or something was raised."""
    healthy = True
    while healthy:
        try:
            job = pipe.recv()
        except EOFError:
            return
        for cell in run(job):
            pipe.send(cell)
            healthy = healthy and not cell.crashed
        if healthy:
            pipe.send(None)
