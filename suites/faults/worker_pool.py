"""Processes that judge one fault each, a few at a time."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, TypeAlias

from kvproof.harness.errors import ANSWERS
from kvproof.harness.isolation.pool import Worker, WorkerLost, run_on_pool
from kvproof.harness.records.fault_events import FaultJudged, Kill
from kvproof.harness.scratch import scratch
from kvproof.suites.faults.catalogue import PlantedFault, in_engine
from kvproof.suites.faults.messages import Job, Line, Progress, read_line
from kvproof.suites.faults.verdict import CRASH, HANG, judged

CORRUPTED = frozenset({signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV})
"""Signals that end a process with damaged memory."""
COMMAND = (sys.executable, "-m", "kvproof.suites.faults.child")
"""Judges the one fault in its first line of input."""
_TAIL = 1000


class FaultProgress(NamedTuple):
    """Progress of one fault."""

    fault: PlantedFault
    suite: str
    done: int


class WorkerCrashed(NamedTuple):
    """The process of a fault ended without a verdict: a fault of kvproof.

    Damaged memory during judging is the planted fault's doing instead.
    """

    fault: PlantedFault
    message: str
    log: str


Report: TypeAlias = FaultProgress | FaultJudged | WorkerCrashed


def judge_faults(
    faults: Sequence[PlantedFault],
    *,
    budget: str,
    seed: int | None,
    directory: Path,
    workers: int,
    limit: float,
    alone: bool = False,
    reach: str = "",
) -> Generator[Report]:
    """Judge faults in parallel, each in a process of its own; closing ends them all.

    After `limit` seconds without a finished test case a fault hangs. Op logs go below `directory`.
    With `alone`, only the property that the catalogue names may find a fault that has one. With
    `reach`, a record of executed lines, suites that cannot find a fault are left out.
    """

    def judge(worker: Worker[Line], fault: PlantedFault) -> Iterator[Report]:
        job = Job(fault, budget, seed, str(directory), alone, reach)
        return _judge(worker, fault, job, limit)

    with scratch("kvproof-faults-") as logs:
        processes = [
            Worker(COMMAND, logs / f"{number}.log", decode=read_line) for number in range(workers)
        ]
        with closing(run_on_pool(processes, faults, judge)) as reports:
            yield from reports


def _judge(worker: Worker[Line], fault: PlantedFault, job: Job, limit: float) -> Iterator[Report]:
    last: Progress | None = None
    kept = False
    begun = time.monotonic()
    try:
        worker.send(job, limit)
        while isinstance(line := worker.receive(limit), Progress):
            last = line
            yield FaultProgress(fault, line.suite, line.done)
        kept = in_engine(fault)  # it was taken back
        yield line
    except WorkerLost as lost:
        yield _lost(fault, lost, last, seconds=time.monotonic() - begun, limit=limit)
    finally:
        if not kept:
            worker.end()  # a planted fault stays in its process


def _lost(
    fault: PlantedFault, lost: WorkerLost, last: Progress | None, *, seconds: float, limit: float
) -> FaultJudged | WorkerCrashed:
    if lost.kind == "timeout":
        return _hung(fault, limit)
    if last and lost.code is not None and -lost.code in CORRUPTED:
        return _crashed(fault, lost, last, seconds)
    log = lost.log.strip()
    return WorkerCrashed(fault, log.splitlines()[-1] if log else str(lost), log[-_TAIL:])


def _hung(fault: PlantedFault, limit: float) -> FaultJudged:
    kill = Kill(
        suite="",
        property=ANSWERS,
        oracle=HANG,
        sentence=f"no test case ends within {limit:g} s",
        cases=0,
        seconds=limit,
        size=0,
    )
    return judged(fault, kill, seconds=limit)


def _crashed(fault: PlantedFault, lost: WorkerLost, last: Progress, seconds: float) -> FaultJudged:
    """The reference or a kernel has damaged the memory of its process during judging."""
    kill = Kill(
        suite=last.suite,
        property=ANSWERS,
        oracle=CRASH,
        sentence=": ".join([str(lost), *lost.log.strip().splitlines()[-1:]]),
        cases=last.done + 1,
        seconds=round(seconds, 3),
        size=0,
    )
    return judged(fault, kill, cases=last.done + 1, seconds=seconds)
