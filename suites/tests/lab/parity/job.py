"""One family in one type, on one device."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import transformers

from kvproof.reference.model_runner.self_check import self_check
from kvproof.reference.model_runner.specs import probe
from kvproof.suites.tests.lab.parity.cells import Cell
from kvproof.suites.tests.lab.parity.compare import Outcome, Subject
from kvproof.suites.tests.lab.parity.levels import LEVELS
from kvproof.suites.tests.lab.parity.planted_bugs import BUGS, seen
from kvproof.suites.tests.lab.parity.tiny_models import FAMILIES, build

SELF_CHECK = "self"


class Job(NamedTuple):
    """Work of one process at a time."""

    family: str
    dtype: str
    device: str
    levels: Sequence[str]
    """Names; empty: all."""
    bugs: bool


def subject(family: str, dtype: str = "float32", device: str = "cpu") -> Subject:
    """Build the tiny model of a family."""
    model = build(family, getattr(torch, dtype), device=device)
    return Subject(family, model, probe(model), FAMILIES[family].image)


def run(job: Job) -> Iterator[Cell]:
    """Compute all cells of a job, on one thread: more are slower on models so small."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False  # timing would choose the algorithm
    transformers.logging.set_verbosity_error()
    try:
        on = subject(job.family, job.dtype, job.device)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other families go on
        yield crashed(job, _spelled(error))
        return
    yield from _cells(job, on)


def crashed(job: Job, wrong: str, *, level: str = SELF_CHECK) -> Cell:
    """Return why a cell was not computed."""
    return Cell(
        family=job.family, dtype=job.dtype, level=level, passed=False, wrong=wrong, crashed=True
    )


def _spelled(error: Exception) -> str:
    """Return the exception and its place, innermost last."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    where = " > ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames)
    return f"{type(error).__name__}: {str(error).strip()[:500]} ({where})"


def _cells(job: Job, on: Subject) -> Iterator[Cell]:
    upstream = _cell(job, SELF_CHECK, lambda: _self_check(on))
    yield upstream
    if not upstream.passed:
        return
    for level in LEVELS:
        wanted = level.name in (job.levels or [level.name])
        if wanted and level.applies(on) and level.fits(job.dtype):
            yield _cell(job, level.name, lambda level=level: level.check(on))  # type: ignore[misc] # bound per iteration
    for each in BUGS if job.bugs else ():
        if each.visible(on):
            yield _cell(job, each.name, lambda each=each: seen(on, each), bug=True)  # type: ignore[misc] # bound per iteration


def _cell(job: Job, name: str, check: Callable[[], Outcome], *, bug: bool = False) -> Cell:
    started = time.monotonic()
    try:
        outcome = check()
    except Exception as error:  # noqa: BLE001 - whatever it is, the other levels go on
        return crashed(job, _spelled(error), level=name)
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


def _self_check(on: Subject) -> Outcome:
    """Distinguish an upstream fault from one of the runner, before any level."""
    check = self_check(on.model)
    worst = max(check.findings, key=lambda finding: (not finding.passed, finding.difference))
    return Outcome(worst.difference, worst.limit, check.problem)
