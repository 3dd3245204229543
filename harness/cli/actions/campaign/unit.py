"""One work unit of a campaign: a suite of a target, 200 histories from one seed."""

from __future__ import annotations

import atexit
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings

from kvproof.harness.campaign.claims import UnitClaims
from kvproof.harness.campaign.databases import WatchedDatabase, open_database
from kvproof.harness.cli.actions.targets import open_all
from kvproof.harness.errors import ANSWERS, TargetDied
from kvproof.harness.isolation import worker_main as worker
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import USUAL, OwnTargets
from kvproof.harness.records.campaign_events import UnitDone
from kvproof.harness.records.events import AnyEvent, Failure, TargetFailed, TargetStarted
from kvproof.harness.settings import Drawing
from kvproof.suites.framework.budgets import BUDGETS, seeded
from kvproof.suites.framework.property import Level
from kvproof.suites.framework.verdicts import Tally
from kvproof.suites.runner.runner import MOST_FAILURES, SuiteRun

_SEPARATOR = " / "


@dataclass(frozen=True, kw_only=True)
class Order:
    """Input of a worker: everything that may change the outcome, except the database."""

    unit: str
    attempt: int
    level: Level
    keep_going: bool
    database: str
    password: str = field(default="", repr=False)
    """Password of the database."""
    artifact: str
    histories: int
    seconds: float
    known: tuple[str, ...]
    """Properties that failed already: they are counted, and not shrunk again."""
    claim: Callable[[str, str], bool]
    draw: Drawing = "hypothesis"
    own: OwnTargets = USUAL


class UnitResult(NamedTuple):
    """Answer of a worker."""

    done: UnitDone
    failures: list[Failure]
    files: dict[str, bytes]
    events: list[AnyEvent]
    """Faults of the harness, deaths of the target."""
    died: TargetFailed | None
    interrupted: bool
    """Ctrl-C has cut it short."""
    holds: bool = False
    """It has claimed a property that it did not shrink."""


def unit_id(target: str, suite: str, seed: int) -> str:
    """Identity of a unit in the records."""
    return _SEPARATOR.join((target, suite, str(seed)))


def parse(unit: str) -> tuple[str, str, int]:
    """Target, suite and seed of a unit."""
    target, suite, seed = unit.rsplit(_SEPARATOR, 2)
    return target, suite, int(seed)


def claim_name(target: str, prop: str) -> str:
    """Name of a claim on a property of a target."""
    return f"{target} {prop}"


def explore_unit(order: Order) -> UnitResult:
    """Do one unit; never raises for the target or for the harness: both are in the result."""
    target, suite_name, seed = parse(order.unit)
    wall, began, cpu = time.time(), time.monotonic(), time.process_time()
    handle, database = _handle(target, order.own), _database(order)
    theirs = _spent(handle)
    before = Counter(database.operations)
    files = _Files()
    events: list[AnyEvent] = []
    run = SuiteRun(handle, files, write=events.append, level=order.level)
    tally, ours = Tally(), UnitClaims(partial(_claim, order, target), order.known)
    try:
        with run.guarded():
            run.start()
            _explore(run, order, tally, ours, database)
    except KeyboardInterrupt:
        tally.interrupted = True
    beside = 0.0 if tally.died else _spent(handle) - theirs
    done = UnitDone(
        unit=order.unit,
        target=target,
        suite=suite_name,
        seed=seed,
        attempt=order.attempt,
        where=f"{platform.node()} {os.getpid()}",
        began=round(wall, 3),
        seconds=round(time.monotonic() - began, 4),
        cpu_seconds=round(time.process_time() - cpu + max(0.0, beside), 4),
        test_cases=tally.test_cases,
        operations=dict(tally.operations),
        situations=dict(tally.situations),
        checks=dict(tally.checks),
        hits=dict(tally.hits),
        pairs=sorted(tally.pairs),
        tolerated=dict(tally.tolerated),
        ended=dict(tally.ended),
        unshrunk=dict(tally.unshrunk),
        failed=sorted({*tally.unshrunk, *tally.failures}),
        shrunk=sorted(tally.failures),
        database=dict(Counter(database.operations) - before),
        died={"kind": tally.died.kind, "message": tally.died.message} if tally.died else {},
    )
    reported: list[AnyEvent] = [event for event in events if not isinstance(event, TargetStarted)]
    failures = list(tally.failures.values())
    unused = ours.held - set(tally.failures) - ({ANSWERS} if tally.died else set())
    return UnitResult(
        done, failures, files.kept, reported, tally.died, tally.interrupted, bool(unused)
    )


def _spent(handle: Handle) -> float:
    """Seconds of processor time of a target's own process; 0 without one, or if it died."""
    if handle.isolation == "worker":
        with suppress(TargetDied):
            job = f"{worker.__name__}:{worker.clock.__name__}"
            return float(handle.run_job(job, {}, timeout=30)["seconds"])
    return 0.0


def _explore(
    run: SuiteRun, order: Order, tally: Tally, ours: UnitClaims, database: WatchedDatabase
) -> None:
    _, suite, seed = parse(order.unit)
    budget = settings(BUDGETS["pr"], max_examples=order.histories)
    run.explore(
        next(each for each in run.suites if each.name == suite),
        seeded(budget, database),
        tally,
        seed=seed,
        draw=order.draw,
        deadline=time.monotonic() + order.seconds,
        most=MOST_FAILURES if order.keep_going else 1,
        rest=order.keep_going,
        claim=ours,
    )


def _claim(order: Order, target: str, name: str) -> bool:
    return order.claim(claim_name(target, name), order.unit)


def tally_of(done: UnitDone, failures: Mapping[str, Failure]) -> Tally:
    """The contribution of a recorded unit to the counts of its suite."""
    return Tally(
        test_cases=done.test_cases,
        operations=Counter(done.operations),
        situations=Counter(done.situations),
        checks=Counter(done.checks),
        hits=Counter(done.hits),
        pairs=Counter(done.pairs),
        tolerated=Counter(done.tolerated),
        ended=Counter(done.ended),
        unshrunk=Counter(done.unshrunk),
        failures=dict(failures),
        seconds=done.seconds,
    )


@cache
def _handle(target: str, own: OwnTargets) -> Handle:
    """Started once for each process, which serves many units."""
    stack = ExitStack()
    atexit.register(stack.close)
    (handle,) = open_all([target], stack, own)
    return handle


def _database(order: Order) -> WatchedDatabase:
    return _opened(order.database, order.artifact, order.password)


@cache
def _opened(where: str, artifact: str, password: str) -> WatchedDatabase:
    return open_database(where, artifact, password=password)


class _Files:
    """Keeps the files of failures for the driver, which has the run's directory."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def write_file(self, name: str, data: bytes) -> Path:
        """Store a file in the answer."""
        self.kept[name] = data
        return Path(name)
