"""A virtual clock: engines that look at the time see only ours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from kvproof.harness.contract.whole_engine import TICK_S

START_S = 1_700_000_000.0
_SECONDS = ("time", "monotonic", "perf_counter")
_NANOSECONDS = ("time_ns", "monotonic_ns", "perf_counter_ns")


class VirtualClock:
    """Seconds that pass by steps alone; also strictly monotonic between two looks."""

    def __init__(self, tick_s: float = TICK_S) -> None:
        self.tick = 0
        self._tick_s = tick_s
        self._looks = 0

    def now(self) -> float:
        """Return the time, a microsecond later than at the last look."""
        self._looks += 1
        return START_S + self.tick * self._tick_s + self._looks * 1e-9

    def nanoseconds(self) -> int:
        """Return `now` in whole nanoseconds."""
        return int(self.now() * 1e9)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Stand in for the functions of `time` meanwhile."""
        kept = {name: getattr(time, name) for name in (*_SECONDS, *_NANOSECONDS)}
        stand_ins = dict.fromkeys(_SECONDS, self.now) | dict.fromkeys(
            _NANOSECONDS, self.nanoseconds
        )
        vars(time).update(stand_ins)
        try:
            yield
        finally:
            vars(time).update(kept)
