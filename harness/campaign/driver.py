"""Gives out work units, takes each result once, and tries again what was lost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple

from kvproof.harness.campaign.pool import Lost, Pool

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
    """What came of one attempt."""

    unit: str
    attempt: int
    result: Any
    """Of the work; Lost if its worker went away."""

    @property
    def last(self) -> bool:
        """Whether the unit is not tried again."""
        return not isinstance(self.result, Lost) or self.attempt >= ATTEMPTS


def outcomes(
    pool: Pool,
    units: Iterable[str],
    argument: Callable[[Given], Any],
    *,
    deadline: float,
    tick: Callable[[int], None] = lambda _: None,
) -> Generator[Outcome]:
    """Outcomes of all units as they come; nothing new begins after `deadline` (monotonic).

    `argument` is asked when a unit begins, so that it holds what is known by then; `tick` hears
    how many run. Closing the iterator gives up what runs. At Ctrl-C the units that run are
    interrupted; what they answer comes before the KeyboardInterrupt is raised again.
    """
    queue = _Queue(units)
    running: dict[str, Given] = {}
    try:
        while running or (queue and time.monotonic() < deadline):
            while queue and time.monotonic() < deadline and len(running) < pool.slots():
                given = queue.take()
                running[given.unit] = given
                pool.submit(given.unit, argument(given))
            tick(len(running))
            if not running:
                time.sleep(_TICK)  # there is no node at the moment
            for unit, result in pool.wait(_TICK):
                outcome = Outcome(*running.pop(unit), result)
                if not outcome.last:
                    queue.again.append(Given(unit, outcome.attempt + 1))
                yield outcome
    except KeyboardInterrupt:
        for unit, result in pool.wind_up(_PATIENCE):
            if not isinstance(result, Lost):
                yield Outcome(*running.pop(unit), result)
        raise
    finally:
        pool.close()


class _Queue:
    """Units to come: those that were lost before those that are new."""

    def __init__(self, units: Iterable[str]) -> None:
        self._left = iter(units)
        self._next = next(self._left, None)
        self.again: deque[Given] = deque()

    def __bool__(self) -> bool:
        return bool(self.again) or self._next is not None

    def take(self) -> Given:
        if self.again:
            return self.again.popleft()
        assert self._next is not None
        unit, self._next = self._next, next(self._left, None)
        return Given(unit, 1)
