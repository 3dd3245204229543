"""An event loop that runs until nothing can go on: no thread, no clock, no waiting."""

from __future__ import annotations

import asyncio
import atexit
import selectors
from collections.abc import Callable
from functools import cache
from typing import Any


class _Selector(selectors.DefaultSelector):
    """Raises an error instead of sleeping."""

    def __init__(self, idle: Callable[[], None]) -> None:
        super().__init__()
        self._idle = idle

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout != 0:
            self._idle()
        return ready


class DeterministicLoop(asyncio.SelectorEventLoop):
    """Runs thread work at once; timers never fire."""

    def __init__(self) -> None:
        super().__init__(_Selector(self.stop))
        self.leaving: list[Callable[[], None]] = []
        """Tasks that cancel the open ones, kept alive until then."""
        # a machine that a failure interrupted has no client left
        self.set_exception_handler(lambda *_: None)

    def settle(self) -> None:
        """Run until every task waits for an absent event."""
        self.run_forever()

    def run_in_executor(  # type: ignore[override]  # its arguments are of any type
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Call `func` now; see `asyncio`."""
        del executor
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the awaiting side decides what it means
            future.set_exception(error)
        return future

    def clear(self) -> None:
        for leave in self.leaving:
            leave()
        self.settle()
        self.leaving.clear()
        for task in asyncio.all_tasks(self):
            task.cancel()
        self.settle()


@cache
def event_loop() -> DeterministicLoop:
    """Return the loop of this process; one machine at a time uses it."""
    loop = DeterministicLoop()

    def close() -> None:
        loop.clear()
        loop.close()

    atexit.register(close)
    return loop
