"""`python -m kvproof.suites.parity`: the whole zoo, a table, and a file for the record."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import cyclopts
import msgspec
from cyclopts import Parameter
from rich.console import Console

from kvproof.harness.errors import UsageError
from kvproof.suites.parity import table
from kvproof.suites.parity.cells import Cell, Report, versions
from kvproof.suites.parity.job import Job, run
from kvproof.suites.parity.levels import LEVELS
from kvproof.suites.parity.zoo import FAMILIES

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
        Processes; 0: one for each core, at most one for each family.
    output
        Files to write, .json or .md; may be repeated.

    """
    _known("family", families, tuple(FAMILIES))
    _known("level", level, tuple(each.name for each in LEVELS))
    _known("dtype", dtype, DTYPES)
    _known("output", [path.suffix for path in output], (".json", ".md"))
    started = time.monotonic()
    todo = [
        Job(family, each, device, level, bugs and each == "float32")
        for family in families or FAMILIES
        for each in dtype
    ]
    cells = list(_run(todo, jobs or _cores(device)))
    order = {(job.family, job.dtype): place for place, job in enumerate(todo)}
    cells.sort(key=lambda cell: order[cell.family, cell.dtype])
    report = Report(versions(device), cells, time.monotonic() - started)
    _show(report)
    for path in output:
        _write(path, report)
    return 1 if report.failed else 0


def _known(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    for each in given:
        if each not in known:
            raise UsageError(f"{what} {each!r} is unknown", f"one of {', '.join(known)}")


def _cores(device: str) -> int:
    """Return how many processes: one on a GPU, whose order of kernels is then its own."""
    return 1 if device != "cpu" else len(os.sched_getaffinity(0))


def _run(todo: Sequence[Job], jobs: int) -> Iterator[Cell]:
    """Compute jobs in processes of their own; a console that is a terminal shows how far it is."""
    os.environ["OMP_NUM_THREADS"] = "1"  # inherited: torch reads it when a process begins
    with ProcessPoolExecutor(min(jobs, len(todo)), mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(run, job) for job in todo]
        for count, done in enumerate(as_completed(waiting), 1):
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{count} of {len(todo)}\033[K" + "\n" * (count == len(todo)))
            yield from done.result()


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


def _write(path: Path, report: Report) -> None:
    if path.suffix == ".md":
        path.write_text(table.markdown(report), encoding="utf-8")
    else:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))


if __name__ == "__main__":
    try:
        sys.exit(app(result_action="return_value"))
    except UsageError as error:
        console.print(f"{error}\n{error.hint}", markup=False)
        sys.exit(2)
