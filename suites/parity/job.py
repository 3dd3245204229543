"""One family in one process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import transformers

from kvproof.reference.model_runner.self_check import self_check
from kvproof.reference.model_runner.specs import probe
from kvproof.suites.parity.cells import Cell
from kvproof.suites.parity.compare import Outcome, Subject
from kvproof.suites.parity.levels import LEVELS
from kvproof.suites.parity.power import BUGS, seen
from kvproof.suites.parity.zoo import FAMILIES, build

SELF_CHECK = "self"


class Job(NamedTuple):
    """What one process computes."""

    family: str
    dtype: str
    device: str
    levels: Sequence[str]
    """Names; none: all."""
    bugs: bool
    """Plant bugs, too."""


def subject(family: str, dtype: str = "float32", device: str = "cpu") -> Subject:
    """Build the tiny model of a family."""
    model = build(family, getattr(torch, dtype), device=device)
    return Subject(family, model, probe(model), FAMILIES[family].image)


def run(job: Job) -> list[Cell]:
    """Compute all cells of a job, on one thread: more are slower on models so small."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    transformers.logging.set_verbosity_error()
    return list(_cells(job, subject(job.family, job.dtype, job.device)))


def _cells(job: Job, on: Subject) -> Iterator[Cell]:
    def cell(name: str, check: Callable[[], Outcome], *, bug: bool = False) -> Cell:
        started = time.monotonic()
        outcome = check()
        return Cell(
            family=job.family,
            dtype=job.dtype,
            level=name,
            passed=outcome.passed is not bug,
            difference=outcome.difference if math.isfinite(outcome.difference) else None,
            limit=outcome.limit,
            wrong=outcome.wrong,
            detail=outcome.detail,
            seconds=time.monotonic() - started,
            bug=bug,
        )

    upstream = cell(SELF_CHECK, lambda: _self_check(on))
    yield upstream
    if not upstream.passed:
        return
    for level in LEVELS:
        if (
            level.applies(on)
            and level.fits(job.dtype)
            and level.name in (job.levels or [level.name])
        ):
            yield cell(level.name, lambda level=level: level.check(on))  # type: ignore[misc] # bound per iteration
    for each in BUGS if job.bugs else ():
        if each.visible(on):
            yield cell(each.name, lambda each=each: seen(on, each), bug=True)  # type: ignore[misc] # bound per iteration


def _self_check(on: Subject) -> Outcome:
    """Tell an upstream fault from one of the runner, before any level."""
    check = self_check(on.model)
    worst = max(check.findings, key=lambda finding: (not finding.passed, finding.difference))
    return Outcome(worst.difference, worst.limit, check.problem)
