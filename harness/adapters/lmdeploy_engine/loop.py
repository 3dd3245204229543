"""An event loop of asyncio whose time is ours, driven handle by handle.

Handles run in the order in which asyncio would run them, each in the same time. Where none is
ready, time moves to the next timer. So a history is the same in every run.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

START_S = 1000.0
HANDLE_S = 2e-5
"""Seconds that a handle takes: timers fire although others are ready all the time."""
MOST_HANDLES = 2_000
"""Handles of one `run`: a loop that never rests is left there, and makes no progress."""


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop without sockets, files, signals and threads."""

    def __init__(self) -> None:
        super().__init__()
        self._now = START_S
        self.set_exception_handler(lambda *_: None)  # tasks are asked for theirs

    def time(self) -> float:
        """Return the time in seconds."""
        return self._now

    def run(self, until: Callable[[], bool], seconds: float) -> int:
        """Run handles until a condition holds, or nothing is ready within some seconds.

        Returns how many ran, `MOST_HANDLES` for a loop that does not come to rest.
        """
        end = self._now + seconds
        asyncio._set_running_loop(self)
        try:
            for count in range(MOST_HANDLES):
                if until() or not self._make_ready(end):
                    return count
                self._run_one()
        finally:
            asyncio._set_running_loop(None)
        return MOST_HANDLES

    def _make_ready(self, end: float) -> bool:
        """Move due timers to the handles; where none is ready, move time, to an end at most."""
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]
        ready = self._ready  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        if not ready and timers and timers[0]._when <= end:
            self._now = max(self._now, timers[0]._when)
        while timers and timers[0]._when <= self._now:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            ready.append(timer)
        return bool(ready)

    def _run_one(self) -> None:
        self._now += HANDLE_S
        handle = self._ready.popleft()  # type: ignore[attr-defined]
        if not handle._cancelled:
            handle._run()

    def end(self) -> None:
        """Cancel every task, let them end, and close."""
        for task in asyncio.all_tasks(self):
            task.cancel()
        self.run(lambda: False, 0.0)
        self.close()
