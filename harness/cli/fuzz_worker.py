"""One process of `fuzz`: explore chunk after chunk and send what was found."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from kvproof.harness.campaign.databases import open_database
from kvproof.harness.cli import interrupts
from kvproof.harness.cli.conformance import open_all
from kvproof.harness.events import AnyEvent
from kvproof.harness.handles import Handle
from kvproof.harness.records import store
from kvproof.suites.cache.budgets import BUDGETS, seeded
from kvproof.suites.property import Level
from kvproof.suites.runner import MOST_FAILURES, SuiteRun
from kvproof.suites.suite import Suite
from kvproof.suites.verdicts import Tally


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What all workers share; `database` keeps failing examples from one run to the next."""

    specs: tuple[str, ...]
    max_seconds: float
    level: Level
    keep_going: bool
    database: str
    artifact: str
    directory: Path
    seed: int
    workers: int


class Found(NamedTuple):
    """What a worker sends after each chunk."""

    spec: str
    suite: str
    tally: Tally | None
    """None: nothing was explored, for the reason in `events`."""
    events: list[AnyEvent]


def work(plan: Plan, index: int, at: Any, sink: Connection) -> None:
    """Explore chunk after chunk until the time is up, in a process of its own."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    explorer = Explorer(plan, index)
    interrupts.listen(signal.SIGTERM)
    with ExitStack() as stack, suppress(KeyboardInterrupt):
        handles = open_all(plan.specs, stack)
        while time.monotonic() < explorer.deadline:
            for at.value, handle in enumerate(handles):
                for found in explorer.chunks(handle):
                    sink.send(found)
                    if _over(found.tally, keep_going=plan.keep_going):
                        return
            explorer.seed += plan.workers


class Explorer:
    """What a worker explores with, and which failures it has seen: they are not shrunk again."""

    def __init__(self, plan: Plan, index: int) -> None:
        self.seed = plan.seed + index
        self._index = index
        self.deadline = time.monotonic() + plan.max_seconds
        self.plan = plan
        database = open_database(plan.database, plan.artifact)
        self._budget = seeded(BUDGETS["pr"], database)
        self._known: defaultdict[tuple[str, str], set[str]] = defaultdict(set)

    def chunks(self, handle: Handle) -> Iterator[Found]:
        """Explore each suite of a target once."""
        events: list[AnyEvent] = []
        files = _Files(self.plan.directory)
        run = SuiteRun(handle, files, write=events.append, level=self.plan.level)
        with run.guarded():
            run.start()
            events.clear()
            for suite in self._turned(run.suites):
                if suite.judged and time.monotonic() < self.deadline:
                    yield Found(handle.name, suite.name, self._explore(run, handle.name, suite), [])
        if events:
            yield Found(handle.name, "", None, events)

    def _turned(self, suites: tuple[Suite, ...]) -> tuple[Suite, ...]:
        """Workers begin at different suites, so that a short run sees more of them."""
        first = self._index * len(suites) // self.plan.workers
        return suites[first:] + suites[:first]

    def _explore(self, run: SuiteRun, target: str, suite: Suite) -> Tally:
        known = self._known[target, suite.name]
        tally = run.explore(
            suite,
            self._budget,
            seed=self.seed,
            deadline=self.deadline,
            most=MOST_FAILURES if self.plan.keep_going else 1,
            known=known,
        )
        known.update(tally.failures)
        return tally


def _end_with_parent() -> None:
    """A killed kvproof must not leave workers behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _over(tally: Tally | None, *, keep_going: bool) -> bool:
    """Stop when told to, at a fault of the harness, or at a failure unless to keep going."""
    if tally is None or tally.interrupted:
        return True
    return bool((tally.failures or tally.died) and not keep_going)


class _Files:
    """Stores files of failures beside the parent's records; the first of a kind stays."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write_file(self, name: str, data: bytes) -> Path:
        path = self.directory / name
        return path if path.exists() else store(path, data)
