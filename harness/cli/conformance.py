"""`run`, `fuzz`, `replay`, `targets profile`."""

from __future__ import annotations

import multiprocessing
import queue
import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeAlias

from hypothesis.database import DirectoryBasedExampleDatabase
from kvproof.harness import oplog
from kvproof.harness.cli.runs import ActiveRun, run_directory, target_failed
from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.handles import Handle
from kvproof.harness.records import AnyEvent
from kvproof.harness.targets import open_handle
from kvproof.suites.cache.budgets import BUDGETS, seeded
from kvproof.suites.cache.properties import Property, supported, why_unsupported
from kvproof.suites.runner import SuiteRun, Tally, replay
from rich.console import Console
from rich.table import Table

_Found: TypeAlias = tuple[str, Tally | None, list[AnyEvent]]
"""Target, what a chunk came to, and what went wrong beside it."""


def open_all(specs: Sequence[str], stack: ExitStack, logs: Path | None = None) -> list[Handle]:
    """Open every target before anything runs, so that a typing error costs nothing."""
    return [stack.enter_context(open_handle(spec, log_directory=logs)) for spec in specs]


def run(
    specs: Sequence[str],
    *,
    budget: str,
    level: str,
    seed: int | None,
    output: Path | None,
    console: Console,
) -> None:
    """`kvproof run`."""
    config = {"targets": list(specs), "budget": budget, "level": level}
    with ExitStack() as stack:
        handles = open_all(specs, stack)
        active = stack.enter_context(
            run_directory("run", config=config, output=output, console=console, seed=seed)
        )
        for handle in handles:
            suites(handle, active, budget=budget, seed=seed)


def suites(handle: Handle, active: ActiveRun, *, budget: str, seed: int | None) -> None:
    """Run the suites on one target and show how far they are."""
    if handle.name in active.judged:
        active.status(handle.name, "judged before the interruption")
        return
    settings = BUDGETS[budget]
    total = settings.max_examples
    active.status(handle.name, "starting", 0, total)
    SuiteRun(handle, active.writer, write=active.write).run(
        settings if seed is None else seeded(settings, None),
        seed=seed,
        progress=lambda done: active.status(handle.name, "exploring", min(done, total), total),
    )


def fuzz(
    specs: Sequence[str],
    *,
    max_seconds: float,
    workers: int,
    seed: int | None,
    keep_going: bool,
    database: Path,
    output: Path | None,
    console: Console,
) -> None:
    """`kvproof fuzz`: every worker explores chunk after chunk, each with a seed of its own."""
    if workers < 1:
        raise UsageError(f"--workers {workers} must be at least 1", "for example --workers 2")
    with ExitStack() as stack:
        open_all(specs, stack)
    first = secrets.randbits(32) if seed is None else seed
    config = {
        "targets": list(specs),
        "max_seconds": max_seconds,
        "workers": workers,
        "keep_going": keep_going,
        "database": str(database),
    }
    with run_directory("fuzz", config=config, output=output, console=console, seed=first) as active:
        _fuzz(active, specs, max_seconds, workers, first, keep_going=keep_going, database=database)


def _fuzz(
    active: ActiveRun,
    specs: Sequence[str],
    max_seconds: float,
    workers: int,
    seed: int,
    *,
    keep_going: bool,
    database: Path,
) -> None:
    context = multiprocessing.get_context("spawn")
    found: multiprocessing.Queue[_Found] = context.Queue()
    common = (list(specs), max_seconds, str(database), str(active.writer.directory), keep_going)
    processes = [
        context.Process(target=_worker, args=(found, seed + index, workers, *common), daemon=True)
        for index in range(workers)
    ]
    for process in processes:
        process.start()
    try:
        tallies = _collect(active, found, processes, max_seconds, keep_going=keep_going)
    finally:
        for process in processes:
            process.terminate()
            process.join()
    for spec in specs:
        _conclude(active, spec, tallies.get(spec))


def _collect(
    active: ActiveRun,
    found: multiprocessing.Queue[_Found],
    processes: Sequence[Any],
    max_seconds: float,
    *,
    keep_going: bool,
) -> dict[str, Tally]:
    """Merge what the workers find until they are done, or until the first failure."""
    tallies: dict[str, Tally] = {}
    start = time.monotonic()
    while any(process.is_alive() for process in processes) or not found.empty():
        cases = sum(tally.test_cases for tally in tallies.values())
        elapsed = int(time.monotonic() - start)
        active.status(
            "fuzz", f"{cases} histories", min(elapsed, int(max_seconds)), int(max_seconds)
        )
        try:
            spec, tally, events = found.get(timeout=1)
        except queue.Empty:
            continue
        for event in events:
            active.write(event)
        if tally is not None:
            tallies.setdefault(spec, Tally()).merge(tally)
            if (tally.failures or tally.died) and not keep_going:
                break
    return tallies


def _conclude(active: ActiveRun, spec: str, tally: Tally | None) -> None:
    """Judge all properties on everything that all workers did."""
    if tally is None:
        return
    with open_handle(spec) as handle:
        run = SuiteRun(handle, active.writer, write=active.write)
        with run.guarded():
            run.start()
            run.conclude(tally)


def _worker(
    found: multiprocessing.Queue[_Found],
    seed: int,
    stride: int,
    specs: list[str],
    max_seconds: float,
    database: str,
    directory: str,
    keep_going: bool,  # noqa: FBT001 - arguments of a process are positional
) -> None:
    """Explore chunk after chunk until the time is up; each chunk is sent at once."""
    budget = seeded(BUDGETS["pr"], DirectoryBasedExampleDatabase(database))
    deadline = time.monotonic() + max_seconds
    with ExitStack() as stack, suppress(KeyboardInterrupt):
        handles = open_all(specs, stack)
        while time.monotonic() < deadline:
            for handle in handles:
                events: list[AnyEvent] = []
                run = SuiteRun(handle, _Files(Path(directory)), write=events.append)
                tally: Tally | None = None
                with run.guarded():
                    run.start()
                    events.clear()
                    tally = run.explore(budget, seed=seed, deadline=deadline)
                found.put((handle.name, tally, events))
                if _over(tally, keep_going=keep_going):
                    return
            seed += stride


def _over(tally: Tally | None, *, keep_going: bool) -> bool:
    """A worker stops at a fault of the harness, or at the first failure unless told otherwise."""
    return tally is None or bool((tally.failures or tally.died) and not keep_going)


class _Files:
    """Stores files of failures beside the parent's records."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write_file(self, name: str, data: bytes) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path


def replay_all(
    paths: Sequence[Path], *, targets: Sequence[str], output: Path | None, console: Console
) -> None:
    """`kvproof replay`."""
    logs = [(path, oplog.load(path)) for path in _op_logs(paths)]
    wanted = {spec: None for _, log in logs for spec in targets or [log.target]}
    config = {"op_logs": [str(path) for path, _ in logs], "targets": list(wanted)}
    with ExitStack() as stack:
        handles = dict(zip(wanted, open_all(list(wanted), stack), strict=True))
        active = stack.enter_context(
            run_directory("replay", config=config, output=output, console=console)
        )
        for path, log in logs:
            for spec in targets or [log.target]:
                _replay(active, handles[spec], path)


def _replay(active: ActiveRun, handle: Handle, path: Path) -> None:
    try:
        event = replay(handle, path)
    except TargetDied as died:
        active.write(target_failed(handle.name, died))
        return
    active.write(event)


def _op_logs(paths: Sequence[Path]) -> list[Path]:
    """Return the op logs named, or found in the directories named."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(p for p in path.rglob("*.json") if p.name != "run.json")
        else:
            found.append(path)
    if not found:
        names = ", ".join(map(str, paths)) or "nothing"
        raise UsageError(
            f"no op log in {names}", "name a run's directory with failures, or op log files"
        )
    return found


def show_profile(spec: str, properties: Sequence[Property], console: Console) -> None:
    """`kvproof targets profile`."""
    with ExitStack() as stack:
        (handle,) = open_all([spec], stack)
        try:
            profile = handle.profile
        except TargetDied as died:
            raise UsageError(f"target {spec!r} does not start: {died}", died.log) from died
        console.print(f"{profile.engine} {profile.version}, {handle.isolation}", style="bold")
        table = Table("property", "rules", "judged", box=None, pad_edge=False)
        for prop in properties:
            judged = "yes" if supported(prop, profile) else why_unsupported(prop, profile)
            table.add_row(prop.name, " ".join(prop.rules), judged)
        console.print(table)
