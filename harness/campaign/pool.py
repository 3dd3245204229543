"""Where work units run: the interface, and processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, cast

from kvproof.harness.isolation.process import exit_in_words

Work: TypeAlias = Callable[[Any], Any]
"""Does one unit; found by its module and name on every node."""


class Lost(NamedTuple):
    """A unit whose worker went away: nothing is known of its outcome."""

    reason: str
    kind: Literal["crash", "hang", "node"] = "node"
    """Its process ended, or did not answer, which the unit may have caused; or its machine left."""


class Finished(NamedTuple):
    """A unit that is no longer running."""

    unit: str
    result: Any
    """Return value of the work, or Lost."""


class Pool(Protocol):
    """Runs units side by side."""

    def slots(self) -> int:
        """How many units can run at the moment."""

    def submit(self, unit: str, argument: Any) -> None:
        """Start a unit; it must not be running."""

    def wait(self, timeout: float) -> list[Finished]:
        """Units that ended, after at most `timeout` seconds."""

    def wind_up(self, patience: float) -> list[Finished]:
        """Interrupt all running units; returns the answers that come within `patience` seconds."""

    def close(self) -> None:
        """End everything that runs."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    unit: str = ""
    """Its unit; empty: none."""
    began: float = 0.0


def _as_it_is() -> None:
    """Default of `prepare`."""


class LocalPool:
    """Processes of this machine, replaced when they die or hang."""

    def __init__(
        self, work: Work, workers: int, *, limit: float, prepare: Callable[[], None] = _as_it_is
    ) -> None:
        """`limit` is the seconds after which a unit is given up and its process killed.

        `prepare` is called in every process first; it may turn SIGTERM into KeyboardInterrupt, so
        that units can answer when they are interrupted.
        """
        self._context = multiprocessing.get_context("spawn")
        self._work, self._workers, self._limit = work, workers, limit
        self._prepare = prepare
        self._crew: list[_Worker] = []

    def slots(self) -> int:
        """The requested number."""
        return self._workers

    def submit(self, unit: str, argument: Any) -> None:
        """Hand a unit to an idle process, or to a new one."""
        idle = next((worker for worker in self._crew if not worker.unit), None)
        worker = idle or self._start()
        worker.unit, worker.began = unit, time.monotonic()
        with suppress(OSError):  # it is dead already, which `wait` finds
            worker.pipe.send(argument)

    def _start(self) -> _Worker:
        """Ctrl-C in a terminal reaches every process of the group; only the driver acts on it."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_serve, args=(self._work, self._prepare, theirs), daemon=True
        )
        heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, heard)
        theirs.close()  # so that the end of the process is the end of the pipe
        worker = _Worker(process, ours)
        self._crew.append(worker)
        return worker

    def wait(self, timeout: float) -> list[Finished]:
        """Results, and units whose process died or took too long."""
        busy = {worker.pipe: worker for worker in self._crew if worker.unit}
        ready = cast("list[Connection]", wait(list(busy), timeout=timeout)) if busy else []
        found = [self._taken(busy[pipe]) for pipe in ready]
        late = time.monotonic() - self._limit
        hung = [worker for worker in self._crew if worker.unit and worker.began < late]
        reason = f"no result within {self._limit:g} s"
        return found + [self._gone(worker, Lost(reason, "hang")) for worker in hung]

    def _taken(self, worker: _Worker) -> Finished:
        try:
            result = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join(5)
            return self._gone(worker, Lost(exit_in_words(worker.process.exitcode or 0), "crash"))
        unit, worker.unit = worker.unit, ""
        return Finished(unit, result)

    def _gone(self, worker: _Worker, lost: Lost) -> Finished:
        self._crew.remove(worker)
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        return Finished(worker.unit, lost)

    def wind_up(self, patience: float) -> list[Finished]:
        """Send SIGTERM to all processes."""
        for worker in self._crew:
            worker.process.terminate()
        busy = {worker.pipe: worker for worker in self._crew if worker.unit}
        found: list[Finished] = []
        deadline = time.monotonic() + patience
        while busy and (left := deadline - time.monotonic()) > 0:
            ready = cast("list[Connection]", wait(list(busy), timeout=left))
            found += [self._taken(busy.pop(pipe)) for pipe in ready]
        return found

    def close(self) -> None:
        """Kill all processes."""
        for worker in self._crew:
            worker.process.kill()
        for worker in self._crew:
            worker.process.join()
            worker.pipe.close()
        self._crew.clear()


def _serve(work: Work, prepare: Callable[[], None], pipe: Connection) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError, KeyboardInterrupt):
        prepare()
        while True:
            pipe.send(work(pipe.recv()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
