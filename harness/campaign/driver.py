"""Gives out work units, takes each result once, and tries lost ones again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kvproof.harness.campaign.pool import Lost, Pool
from kvproof.harness.isolation.signals import held

ATTEMPTS = 3
"""How often a unit may lose its worker; then it is given up, because it may be the reason."""

_PATIENCE = 5.0
"""Seconds in which units that are interrupted should answer."""

_TICK = 0.5
"""Seconds after which the driver looks at the clock."""


class Given(NamedTuple):
    """A unit under way."""

    unit: str
    attempt: int


class Outcome(NamedTuple):
    """Result of one attempt."""

    unit: str
    attempt: int
    result: Any
    """Result of the work; Lost if its worker went away."""
    last: bool
    """Whether the unit is not tried again."""


def work_off(
    pool: Pool,
    units: Iterable[str],
    argument: Callable[[Given], Any],
    take: Callable[[Outcome], object],
    *,
    deadline: float,
    tick: Callable[[int], None] = lambda _: None,
    lost: Iterable[str] = (),
) -> None:
    """Pass the outcomes of all units to `take` as they come, until it returns something true.

    No unit begins after `deadline` (monotonic). Lost units are retried also after it, while there
    is a place to run; `lost` names units that an earlier driver has lost. `argument` is called when
    a unit begins, for the current knowledge; `tick` gets the number of running units. At the end
    the running units are given up. Ctrl-C waits until `take` has the finished ones; then the
    running units are interrupted, their answers are taken, and KeyboardInterrupt is raised again.
    """
    queue = _Queue(units, lost)
    running: dict[str, Given] = {}
    try:
        while running or queue.holds(deadline):
            while queue.holds(deadline) and len(running) < pool.slots():
                given = queue.take()
                running[given.unit] = given
                pool.submit(given.unit, argument(given))
            tick(len(running))
            if not running:  # there is no node at the moment
                if time.monotonic() >= deadline:
                    break
                time.sleep(_TICK)
            came = pool.wait(_TICK)
            with held():  # every recorded outcome must be counted, too
                found = [_outcome(running.pop(unit), result) for unit, result in came]
                queue.again.extend(Given(o.unit, o.attempt + 1) for o in found if not o.last)
                enough = [take(outcome) for outcome in found]
            if any(enough):
                return
        for given in queue.again:
            take(Outcome(*given, Lost("no node was left to try it again"), last=True))
    except KeyboardInterrupt:
        for unit, result in pool.wind_up(_PATIENCE):
            if not isinstance(result, Lost):
                take(_outcome(running.pop(unit), result))
        raise
    finally:
        pool.close()


def _outcome(given: Given, result: Any) -> Outcome:
    lost = isinstance(result, Lost)
    return Outcome(*given, result, last=not lost or given.attempt >= ATTEMPTS)


class _Queue:
    def __init__(self, units: Iterable[str], lost: Iterable[str]) -> None:
        self._left = iter(units)
        self._next = next(self._left, None)
        self.again = deque(Given(unit, 1) for unit in lost)

    def holds(self, deadline: float) -> bool:
        """Whether there is a unit to begin, as late as this."""
        return bool(self.again) or (self._next is not None and time.monotonic() < deadline)

    def take(self) -> Given:
        if self.again:
            return self.again.popleft()
        assert self._next is not None
        unit, self._next = self._next, next(self._left, None)
        return Given(unit, 1)
