"""SGLang's endless event loop, one iteration at a time.

The loop has a thread of its own, which rests where the loop asks for new requests. Exactly one of
the two threads runs at any time, so a history is the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class _Ended(BaseException):
    """Raised in the loop's thread to leave the loop."""


class Loop:
    """A loop that calls `rest` once per iteration."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        """Calls for the loop's thread while it rests; None: another iteration."""
        self._done: SimpleQueue[tuple[object, BaseException | None]] = SimpleQueue()
        self._thread = Thread()

    def start(self, run: Callable[[], None]) -> None:
        """Run until the loop rests for the first time."""
        self._thread = Thread(target=self._run, args=(run,), daemon=True)
        self._thread.start()
        self._wait()

    def _run(self, run: Callable[[], None]) -> None:
        try:
            run()
        except _Ended:
            self._done.put((None, None))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the other thread
            self._done.put((None, error))

    def rest(self) -> None:
        """Wait for the next iteration; called by the loop."""
        self._done.put((None, None))
        while (work := self._work.get()) is not None:
            try:
                self._done.put((work(), None))
            except _Ended:
                raise
            except BaseException as error:  # noqa: BLE001 - as above
                self._done.put((None, error))

    def _wait(self) -> Any:
        found, error = self._done.get()
        if error is not None:
            raise error
        return found

    def step(self) -> None:
        """Run one iteration. Raises the loop's own exception, which has ended it."""
        self._put(None)

    def call(self, work: Callable[[], T]) -> T:
        """Do something in the loop's thread, between two iterations."""
        found: T = self._put(work)
        return found

    def _put(self, work: Callable[[], object] | None) -> Any:
        if not self._thread.is_alive():
            return None
        self._work.put(work)
        return self._wait()

    def end(self) -> None:
        """Leave the loop."""

        def leave() -> None:
            raise _Ended

        self._put(leave)
        self._thread.join()
