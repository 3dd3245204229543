"""Bit-exact transfers on a device, in so many seconds.

python -m kvproof.suites.tests.lab.stress.transfer --device cuda [--seconds 90] [--seed 0]

Runs, spread over processes: the geometries of all models, at once and with streams that pause; the
same chunks on the device and on a CPU, each read back by the other; chunks through the memory of a
cache server, in one process and in two, on a GPU also by CUDA IPC; heads of 1 to 1,200 bytes, each
width in one layout; then random histories until the time is over. On a GPU everything goes from
pages over slots to pinned memory and back. Exit status: 0 all right; 1 a wrong byte; 2 too little
time for the jobs other than random histories.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from kvproof.suites.tests.lab import needs_torch  # noqa: F401 - comes before torch
from kvproof.suites.tests.lab.stress.transfer.jobs import Done, Job, do, jobs, shuffled

GRACE = 25
"""Seconds after the deadline in which a job under way may end."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all jobs and write a line for each kind."""
    asked = _parser().parse_args(arguments)
    end = time.time() + asked.seconds
    found = shuffled(
        list(jobs(asked.device, processes=asked.processes, seed=asked.seed)), asked.seed
    )
    context = multiprocessing.get_context("spawn")  # a GPU cannot be used after a fork
    with ProcessPoolExecutor(asked.processes, mp_context=context) as pool:
        done = list(_all(pool, found, end))
        sys.stdout.writelines(f"{line}\n" for line in report(found, done))
        sys.stdout.flush()  # a hanging worker delays this process, but loses no results
    if any(each.wrong for each in done):
        return 1
    return 2 if len(done) < len(found) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kvproof.suites.tests.lab.stress.transfer")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu (default: cuda)")
    parser.add_argument("--seconds", type=float, default=90, help="in all (default: 90)")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--seed", type=int, default=0, help="of random histories (default: 0)")
    return parser


def _all(pool: ProcessPoolExecutor, found: Sequence[Job], end: float) -> Iterator[Done]:
    """Run jobs until the time is over; later ones are left out."""
    waiting: list[Future[Done]] = [pool.submit(do, job, end) for job in found]
    try:
        for each in as_completed(waiting, timeout=max(0.0, end + GRACE - time.time())):
            if not each.cancelled():
                yield each.result()
            if time.time() > end:
                pool.shutdown(wait=False, cancel_futures=True)
    except (TimeoutError, BrokenProcessPool):
        pool.shutdown(wait=False, cancel_futures=True)


def report(found: Sequence[Job], done: Sequence[Done]) -> Iterator[str]:
    """Print the jobs of each kind, then all errors."""
    for kind in dict.fromkeys(job.kind for job in found):
        mine = [each for each in done if each.kind == kind]
        checks = sum((each.checks for each in mine), Counter[str]())
        histories = checks.pop("histories", 0)
        count = f"{len(mine)} of {sum(job.kind == kind for job in found)}"
        more = f", {histories} histories" if histories else ""
        wrong = sum(bool(each.wrong) for each in mine)
        took = f"{wrong} wrong, {sum(each.seconds for each in mine):.0f} s"
        yield f"{kind:12}{count:>10} jobs, {checks.total():>7} checks{more}, {took}"
    for each in done:
        if each.wrong:
            yield f"WRONG {each.kind}, {each.name}: {each.wrong}"


if __name__ == "__main__":
    sys.exit(main())
