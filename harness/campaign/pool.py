"""Where work units run: the interface, and processes of this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from kvproof.harness.campaign.worker_main import Packed, pack, unpack
from kvproof.harness.isolation.pool import Worker, WorkerLost

COMMAND = (sys.executable, "-m", "kvproof.harness.campaign.worker_main")

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


class LocalPool:
    """Processes of this machine, replaced when they die or hang."""

    def __init__(self, work: Work, workers: int, *, limit: float) -> None:
        """`limit` is the seconds after which a unit is given up and its process killed."""
        self._work, self._limit = work, limit
        self._logs = TemporaryDirectory(prefix="kvproof-campaign-")
        self._workers = [
            Worker(COMMAND, Path(self._logs.name, f"{number}.log"), decode=unpack)
            for number in range(workers)
        ]
        self._idle = list(self._workers)
        self._threads = ThreadPoolExecutor(workers)
        self._running: dict[Future[Any], tuple[str, Worker[Any]]] = {}

    def slots(self) -> int:
        """The requested number."""
        return len(self._workers)

    def submit(self, unit: str, argument: Any) -> None:
        """Hand a unit to an idle process, which starts when it is needed."""
        message, worker = pack((self._work, argument)), self._idle.pop()
        self._running[self._threads.submit(self._do, worker, message)] = unit, worker

    def _do(self, worker: Worker[Any], message: Packed) -> Any:
        try:
            return worker.ask(message, self._limit)
        except WorkerLost as lost:
            if lost.kind == "timeout":
                return Lost(f"no result within {self._limit:g} s", "hang")
            raised = lost.log.strip().splitlines()[-1:] if (lost.code or 0) > 0 else []
            return Lost(": ".join([str(lost), *raised]), "crash")

    def wait(self, timeout: float) -> list[Finished]:
        """Results, and units whose process died or took too long."""
        return self._wait(timeout, FIRST_COMPLETED)

    def _wait(self, timeout: float, until: str) -> list[Finished]:
        done = wait(self._running, timeout=timeout, return_when=until).done
        return [self._taken(future) for future in done]

    def _taken(self, future: Future[Any]) -> Finished:
        unit, worker = self._running.pop(future)
        self._idle.append(worker)
        return Finished(unit, future.result())

    def wind_up(self, patience: float) -> list[Finished]:
        """Send SIGTERM to the processes of all units."""
        for _, worker in self._running.values():
            worker.interrupt()
        return self._wait(patience, ALL_COMPLETED)

    def close(self) -> None:
        """Kill all processes."""
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown()
        for worker in self._workers:
            worker.end()
        self._logs.cleanup()
