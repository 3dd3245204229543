"""`fuzz`: workers explore side by side, chunk after chunk, each chunk with a seed of its own."""

from __future__ import annotations

import multiprocessing
import secrets
import signal
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias, cast

from rich.console import Console

from kvproof.harness.campaign.databases import open_database
from kvproof.harness.cli.conformance import open_all
from kvproof.harness.cli.fuzz_worker import Found, Plan, work
from kvproof.harness.cli.runs import ActiveRun, run_directory
from kvproof.harness.errors import UsageError
from kvproof.harness.events import AnyEvent, Failure, HarnessFault, TargetFailed
from kvproof.harness.records import read_run
from kvproof.harness.settings import CampaignSettings
from kvproof.harness.targets import open_handle
from kvproof.harness.worker_process import exit_in_words
from kvproof.suites.cache.suite import NAME as CACHE
from kvproof.suites.property import Level
from kvproof.suites.runner import SuiteRun
from kvproof.suites.verdicts import Tally

_PATIENCE = 5.0
"""Seconds in which a worker that closed its pipe should have ended."""


Tallies: TypeAlias = dict[str, defaultdict[str, Tally]]
"""Target -> suite -> what all workers did."""


@dataclass
class _Worker:
    """A process of this machine, and what it was last seen at."""

    process: BaseProcess
    at: Any
    """Shared integer: number of the target being explored, -1 before the first."""


def fuzz(
    specs: Sequence[str],
    *,
    max_seconds: float,
    workers: int,
    level: Level,
    seed: int | None,
    keep_going: bool,
    shared: CampaignSettings,
    output: Path | None,
    console: Console,
) -> None:
    """`kvproof fuzz` on processes of this machine, until the time is up."""
    if workers < 1:
        raise UsageError(f"--workers {workers} must be at least 1", "for example --workers 2")
    open_database(shared.database, shared.artifact)
    with ExitStack() as stack:
        open_all(specs, stack)
    first = first_seed(output) if seed is None else seed
    config = {
        "targets": list(specs),
        "max_seconds": max_seconds,
        "workers": workers,
        "level": level,
        "keep_going": keep_going,
        "database": shared.database,
    }
    with run_directory("fuzz", config=config, output=output, console=console, seed=first) as active:
        plan = Plan(
            specs=tuple(specs),
            max_seconds=max_seconds,
            level=level,
            keep_going=keep_going,
            database=shared.database,
            artifact=shared.artifact,
            directory=active.writer.directory,
            seed=first,
            workers=workers,
        )
        _explore(active, plan)


def first_seed(output: Path | None) -> int:
    """Go on with the seed of the run in `output`, if there is one; else draw one."""
    if output and (output / "run.json").exists():
        recorded = read_run(output).manifest
        if recorded.verb == "fuzz" and recorded.seed is not None:
            return recorded.seed
    return secrets.randbits(32)


def _explore(active: ActiveRun, plan: Plan) -> None:
    """Judge what was found also after Ctrl-C, which is how long runs usually end."""
    tallies: Tallies = {spec: defaultdict(Tally) for spec in plan.specs}
    crew = _start(plan)
    cut_short = True
    try:
        _collect(active, plan, crew, tallies)
        cut_short = False
    finally:
        _dismiss(active, crew, tallies)
        for spec, suites in tallies.items():
            if any(tally.test_cases or tally.died for tally in suites.values()) or not cut_short:
                conclude(active, plan.level, spec, suites)


def _start(plan: Plan) -> dict[Connection, _Worker]:
    """Ctrl-C in a terminal reaches every process of the group; only this one acts on it."""
    context = multiprocessing.get_context("spawn")
    crew: dict[Connection, _Worker] = {}
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for index in range(plan.workers):
            at = context.RawValue("i", -1)
            source, sink = context.Pipe(duplex=False)
            process = context.Process(target=work, args=(plan, index, at, sink), daemon=True)
            process.start()
            sink.close()  # so that the end of the worker is the end of the pipe
            crew[source] = _Worker(process, at)
    finally:
        signal.signal(signal.SIGINT, heard)
    return crew


def _collect(
    active: ActiveRun, plan: Plan, crew: dict[Connection, _Worker], tallies: Tallies
) -> None:
    """Merge what the workers find until they are done, or until the first failure."""
    start, total = time.monotonic(), int(plan.max_seconds)
    open_pipes = list(crew)
    while open_pipes:
        cases = sum(tally.test_cases for found in tallies.values() for tally in found.values())
        elapsed = min(int(time.monotonic() - start), total)
        active.status("fuzz", f"{cases} histories", elapsed, total)
        for source in cast("list[Connection]", wait(open_pipes, timeout=1)):
            try:
                chunk: Found | None = source.recv()
            except (EOFError, OSError):
                open_pipes.remove(source)
                chunk = _last_words(crew[source], plan)
            if chunk is None:
                continue
            _take(active, chunk, tallies)
            found = tallies[chunk.spec][chunk.suite]
            if (found.failures or found.died) and not plan.keep_going:
                return


def _dismiss(active: ActiveRun, crew: dict[Connection, _Worker], tallies: Tallies) -> None:
    """Tell the workers to stop, take what they have until then, and end those that do not."""
    for worker in crew.values():
        worker.process.terminate()
    try:
        deadline = time.monotonic() + _PATIENCE
        open_pipes = list(crew)
        while open_pipes and time.monotonic() < deadline:
            for source in cast("list[Connection]", wait(open_pipes, timeout=_PATIENCE)):
                try:
                    _take(active, source.recv(), tallies)
                except (EOFError, OSError):
                    open_pipes.remove(source)
    finally:
        for worker in crew.values():
            worker.process.kill()
            worker.process.join()


def _last_words(worker: _Worker, plan: Plan) -> Found | None:
    """Say what became of a worker that ended in any other way than by returning."""
    worker.process.join(_PATIENCE)
    code = worker.process.exitcode
    if not code:
        return None
    message = f"{exit_in_words(code)} while fuzzing"
    if worker.at.value < 0:
        fault = HarnessFault(where="kvproof fuzz", message=f"{message}, before the first history")
        return Found(plan.specs[0], "", None, [fault])
    spec = plan.specs[worker.at.value]
    died = TargetFailed(target=spec, kind="crash", message=message)
    return Found(spec, CACHE, Tally(died=died), [])


def _take(active: ActiveRun, chunk: Found, tallies: Tallies) -> None:
    """Record failures at once, so that a killed run has them."""
    for event in chunk.events:
        active.write(event)
    if chunk.tally is None:
        return
    merged = tallies[chunk.spec][chunk.suite]
    for name, failure in chunk.tally.failures.items():
        if name not in merged.failures:
            active.write(failure)
    merged.merge(chunk.tally)


def conclude(active: ActiveRun, level: Level, spec: str, suites: Mapping[str, Tally]) -> None:
    """Judge all properties on everything that all workers did."""

    def write(event: AnyEvent) -> None:
        if not isinstance(event, Failure):  # recorded when it was found
            active.write(event)

    with open_handle(spec) as handle:
        run = SuiteRun(handle, active.writer, write=write, level=level)
        with run.guarded():
            run.start()
            run.conclude({suite.name: suites.get(suite.name, Tally()) for suite in run.suites})
