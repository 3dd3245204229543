"""Suites of a run, or profiles of one, shared by processes of this machine with own targets.

A process that has nothing to do takes a part from the end of the list, this one from its
beginning. Others only count: a part in which something new fails is explored here once more.
Counts are added in the order of the list, so that a result is the same with any number of them.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import Lock, Thread
from typing import NamedTuple

from hypothesis import settings

from kvproof.harness.campaign.worker_main import __name__ as worker_module
from kvproof.harness.campaign.worker_main import pack, unpack
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.pool import Worker, WorkerLost
from kvproof.harness.isolation.registry import USUAL, OwnTargets, open_handle
from kvproof.harness.scratch import scratch
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.explore import Counts, Elsewhere, turns_of
from kvproof.suites.framework.property import Level
from kvproof.suites.framework.seeds import PARTS
from kvproof.suites.framework.suite import Suite
from kvproof.suites.runner import levels
from kvproof.suites.runner.replay import known_failures

COMMAND = (sys.executable, "-m", worker_module)
LIMIT_S = 1800.0
"""Time limit of one part."""
WORTH = 100
"""Histories of a suite from which on another process is worth its start."""


class Sharing(NamedTuple):
    """How another process opens the target."""

    target: str
    """Target as written after `--target`."""
    own: OwnTargets = USUAL


class Budget(NamedTuple):
    """Differences between budgets; settings of Hypothesis do not survive another process."""

    cases: int
    steps: int
    derandomize: bool

    def settings(self) -> settings:
        """Return it as Hypothesis takes it."""
        return settings(
            BUDGETS["pr"],
            max_examples=self.cases,
            stateful_step_count=self.steps,
            derandomize=self.derandomize,
        )


@dataclass(frozen=True, kw_only=True)
class Order:
    """One profile, or a whole suite: everything that may change the outcome."""

    sharing: Sharing
    level: Level
    suite: str
    part: int | None
    """Number of the profile; None: all of them."""
    budget: Budget
    seed: int | None
    known: tuple[str, ...]
    """Properties that failed already: they are counted, and not shrunk again."""


def explore_part(order: Order) -> Counts | None:
    """Explore a profile, or a suite, in this process; None: something new fails in it."""
    handle, begun = _opened(order.sharing), time.monotonic()
    suite, asked = _suite(handle, order), handle.engine_seconds
    seen = suite.explore(
        order.budget.settings(),
        seed=order.seed,
        claim=lambda _: False,
        elsewhere=lambda part: None if order.part in (None, part) else Counts(),
    )
    if seen.died or seen.interrupted or seen.unshrunk.keys() - set(order.known):
        return None
    counts = Counts()
    counts.add(seen)
    if order.part is None:
        counts.seconds = time.monotonic() - begun
        counts.engine_seconds = handle.engine_seconds - asked
    return counts


@cache
def _opened(sharing: Sharing) -> Handle:
    handle = open_handle(sharing.target, options=sharing.own)
    atexit.register(handle.close)
    return handle


def _suite(handle: Handle, order: Order) -> Suite:
    (suite,) = (each for each in levels.suites(handle, order.level) if each.name == order.suite)
    return suite.knowing(known_failures(handle))


def whole(counts: Counts) -> Elsewhere:
    """Return the counts of a suite as those of its first part, and none of the others."""
    return lambda part: Counts() if part else counts


@contextmanager
def suites_shared_out(
    suites: Sequence[Suite], order: Callable[[Suite], Order]
) -> Iterator[Callable[[Suite], Counts | None]]:
    """Let another process explore suites inside, the last ones first.

    Yields the question for a suite's counts; None: it is explored here.
    """
    with shared_out(1, len(suites), lambda number: order(suites[number])) as elsewhere:
        yield lambda suite: elsewhere(suites.index(suite)) if suite in suites else None


def apart(suites: Sequence[Suite], budget: settings) -> list[Suite]:
    """Return the suites that another process may explore: none where that is not worth it."""
    alone = [each for each in suites if each.judged and each.component.processes == 1]
    worth = len(alone) > 1 and _cores() > 1 and budget.max_examples >= WORTH
    return alone if worth else []


def others(suite: Suite, budget: settings, *, seed: int | None) -> tuple[int, int]:
    """Return how many other processes may share a suite's parts on this machine, and the parts."""
    turns = turns_of(budget, seed=seed) * max(1, len(suite.component.profiles))
    parts = turns if suite.component.by_seed is None else PARTS
    return min(suite.component.processes, _cores(), parts) - 1, parts


def _cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def shared_out(processes: int, parts: int, order: Callable[[int], Order]) -> Iterator[Elsewhere]:
    """Let other processes explore parts inside; the last ones first. They end with the block."""
    division = _Division(parts)
    with scratch("kvproof-shares-") as logs:
        workers = [
            Worker(COMMAND, logs / f"{number}.log", decode=unpack) for number in range(processes)
        ]
        threads = [
            Thread(target=_serve, args=(worker, division, order), daemon=True) for worker in workers
        ]
        try:
            for thread in threads:
                thread.start()
            yield division.elsewhere
        finally:
            division.end()
            for worker in workers:
                worker.kill()
            for thread in threads:
                thread.join()
            for worker in workers:
                worker.end()


def _serve(
    worker: Worker[Counts | None], division: _Division, order: Callable[[int], Order]
) -> None:
    """Have a process explore one part after the other; one that is lost gets no more."""
    for part, found in division.from_the_end():
        try:
            found.set_result(worker.ask(pack((explore_part, order(part))), LIMIT_S))
        except WorkerLost:
            found.set_result(None)
            break


class _Division:
    """Parts that are left, and parts that are taken, with their takers."""

    def __init__(self, parts: int) -> None:
        self._left = deque(range(parts))
        self._taken: dict[int, Future[Counts | None]] = {}
        self._lock = Lock()

    def from_the_end(self) -> Iterator[tuple[int, Future[Counts | None]]]:
        """Take one part after the other, for a process."""
        while True:
            with self._lock:
                if not self._left:
                    return
                part, found = self._left.pop(), Future[Counts | None]()
                self._taken[part] = found
            yield part, found

    def elsewhere(self, part: int) -> Counts | None:
        """Wait for the counts of a part that was taken; None: explore it here."""
        with self._lock:
            found = self._taken.get(part)
            if found is None:
                self._left.remove(part)
                return None
        return found.result()

    def end(self) -> None:
        """Give out nothing more."""
        with self._lock:
            self._left.clear()
