"""`python -m kvproof.suites.tests.lab.parity`: all models, a table, a file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import cyclopts
import msgspec
from cyclopts import Parameter
from rich.console import Console

from kvproof.harness.errors import UsageError
from kvproof.suites.tests.lab import needs_torch  # noqa: F401 - comes before torch
from kvproof.suites.tests.lab.parity import table
from kvproof.suites.tests.lab.parity.cells import Cell, Report, versions
from kvproof.suites.tests.lab.parity.job import Job
from kvproof.suites.tests.lab.parity.levels import LEVELS
from kvproof.suites.tests.lab.parity.pool import compute
from kvproof.suites.tests.lab.parity.tiny_models import FAMILIES

DTYPES = ("float32", "float64", "bfloat16")
app = cyclopts.App(
    name="parity", help="Prove that cache reuse does not change what models compute."
)
console = Console(stderr=False)


@app.default
def main(  # the signature is the command line
    *families: str,
    level: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    dtype: Annotated[tuple[str, ...], Parameter(negative="")] = ("float32", "float64"),
    device: str = "cpu",
    bugs: bool = True,
    jobs: int = 0,
    seconds: float = 0,
    output: Annotated[tuple[Path, ...], Parameter(negative="")] = (),
) -> int:
    """Run the zoo, or some families of it.

    Parameters
    ----------
    families
        Names of families; all of them without.
    level
        Only this level; may be repeated.
    dtype
        float32, float64 or bfloat16; may be repeated.
    device
        Where the models run: cpu, cuda, cuda:1.
    bugs
        Also plant bugs, in float32, and demand that each is seen.
    jobs
        Processes; 0: one for each core, on a GPU at most eight, at most one for each family.
    seconds
        Give up what is not finished by then; 0: never.
    output
        Files to write, .json or .md; may be repeated. They are written anew whenever a family is
        finished.

    """
    _known("family", families, tuple(FAMILIES))
    _known("level", level, tuple(each.name for each in LEVELS))
    _known("dtype", dtype, DTYPES)
    _known("output", [path.suffix for path in output], (".json", ".md"))
    todo = [
        Job(family, each, device, level, bugs and each == "float32")
        for family in dict.fromkeys(families or FAMILIES)
        for each in dict.fromkeys(dtype)
    ]
    run = _Run(todo, Report(versions(device), [], 0), output)
    for news in compute(todo, processes=jobs or _cores(device), seconds=seconds):
        if news.cell is not None:
            run.cells.append(news.cell)
        if news.done:
            run.finish(news.job)
    report = run.report()
    _show(report)
    run.write()
    return 1 if report.failed or report.unfinished else 0


def _known(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    for each in given:
        if each not in known:
            raise UsageError(f"{what} {each!r} is unknown", f"one of {', '.join(known)}")


def _cores(device: str) -> int:
    """Return how many processes: each of those on a GPU takes half a gigabyte of it."""
    cores = len(os.sched_getaffinity(0))
    return cores if device == "cpu" else min(8, cores)


class _Run:
    """Results so far."""

    def __init__(self, todo: Sequence[Job], empty: Report, output: Sequence[Path]) -> None:
        self.cells: list[Cell] = []
        self._todo, self._empty, self._output = todo, empty, output
        self._order = {(job.family, job.dtype): place for place, job in enumerate(todo)}
        self._left = dict.fromkeys(todo)
        self._started = time.monotonic()

    def finish(self, job: Job) -> None:
        """Print the end of a job, and write all results so far."""
        del self._left[job]
        own = [cell for cell in self.cells if (cell.family, cell.dtype) == (job.family, job.dtype)]
        failed = sum(not cell.passed for cell in own)
        line = f"[{len(self._todo) - len(self._left)}/{len(self._todo)}] {job.family} {job.dtype}: "
        line += f"{len(own)} cells, {failed} failed, {sum(cell.seconds for cell in own):.0f} s"
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
        self.write()

    def report(self) -> Report:
        """Return the cells in the order of the zoo."""
        cells = sorted(self.cells, key=lambda cell: self._order[cell.family, cell.dtype])
        left = tuple(f"{job.family} {job.dtype}" for job in self._left)
        seconds = time.monotonic() - self._started
        return msgspec.structs.replace(self._empty, cells=cells, seconds=seconds, unfinished=left)

    def write(self) -> None:
        """Write the files, each at once: a reader never sees half of one."""
        report = self.report()
        for path in self._output:
            text = table.markdown(report) if path.suffix == ".md" else _json(report)
            part = path.with_name(f".{path.name}.part")
            part.write_text(text, encoding="utf-8")
            part.replace(path)


def _json(report: Report) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=1).decode()


def _show(report: Report) -> None:
    for drawn in table.terminal(report):
        console.print(drawn)
    for reason in table.reasons(report):
        console.print(reason, markup=False)
    about = report.versions
    console.print(
        f"transformers {about.transformers}, torch {about.torch}, {about.device}: "
        f"{len(report.cells)} cells, {len(report.failed)} failed, {report.seconds:.0f} s"
    )


if __name__ == "__main__":
    try:
        sys.exit(app(result_action="return_value"))
    except UsageError as error:
        console.print(f"{error}\n{error.hint}", markup=False)
        sys.exit(2)
