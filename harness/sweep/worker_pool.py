"""The processes of a sweep: each answers one request at a time, may die, and is replaced.

One thread drives one process; whatever a thread finds out goes through one queue to the caller.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Literal, TypeAlias, TypeVar

import msgspec

from kvproof.harness.isolation.process import WorkerProcess
from kvproof.harness.records.sweep_events import CaseValue
from kvproof.harness.sweep.messages import (
    Answer,
    DeviceKind,
    Greet,
    Greeted,
    Request,
    encode,
    read_answer,
)

_START = 180.0
"""Seconds in which a worker must have imported torch and answered its first request."""

Task = TypeVar("Task")
Result = TypeVar("Result")
Lost: TypeAlias = Literal["timeout", "crash", "start"]


@dataclass(frozen=True)
class Seat:
    """Where a worker runs."""

    asked: Literal["auto", "cpu", "cuda"]
    index: int = 0
    """Of the device."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the worker's process: which device it sees, and as what."""
        environment = dict(os.environ)
        if self.asked == "cpu":
            environment["TRITON_INTERPRET"] = "1"
        else:
            visible = environment.get("CUDA_VISIBLE_DEVICES", "")
            names = [name for name in visible.split(",") if name]
            if not names:
                environment["CUDA_VISIBLE_DEVICES"] = str(self.index)
            else:  # none beyond those that this process may use
                environment["CUDA_VISIBLE_DEVICES"] = "".join(names[self.index : self.index + 1])
        return environment


class WorkerLost(Exception):
    """The process of a worker ended, hung or did not start; it is replaced on the next request."""

    def __init__(self, kind: Lost, reason: str, log: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.log = log


class SweepProcess:
    """A worker that is started when it is asked something, by one thread at a time."""

    def __init__(self, seat: Seat, log: Path) -> None:
        self.seat = seat
        self.facts: dict[str, CaseValue] = {}
        """What the worker said about its device when it started last."""
        self.device: DeviceKind = "cpu"
        self._log = log
        self._process: WorkerProcess | None = None
        self._killed = False

    def end(self) -> None:
        """End the process; the next request starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def kill(self) -> None:
        """Kill the process from another thread than that which asks, for good."""
        self._killed = True
        process = self._process
        if process is not None:
            process.kill()

    def ask(self, request: Request, timeout: float) -> Answer:
        """The answer to a request. Raises WorkerLost."""
        self.start()
        return self._exchange(request, timeout, "timeout", "crash")

    def start(self) -> None:
        """Start the process and greet it, unless it runs. Raises WorkerLost."""
        if self._process is not None:
            return
        if self._killed:
            raise WorkerLost("start", "the sweep is being stopped", "")
        command = [sys.executable, "-m", "kvproof.harness.sweep.worker_main", "--device"]
        self._process = WorkerProcess(
            [*command, self.seat.asked], self._log, environment=self.seat.environment
        )
        greeted = self._exchange(Greet(), _START, "start", "start")
        assert isinstance(greeted, Greeted)
        self.device, self.facts = greeted.device, greeted.facts

    def _exchange(self, request: Request, timeout: float, hung: Lost, died: Lost) -> Answer:
        process = self._process
        assert process is not None
        kind, reason = died, ""
        try:
            answer: Answer = read_answer(process.exchange(encode(request), timeout))
            return answer
        except TimeoutError:
            kind, reason = hung, f"no answer within {timeout:g} s"
        except EOFError:
            reason = process.how_it_ended()
        except msgspec.MsgspecError as error:
            reason = f"the worker talked nonsense: {error}"
        log = process.log_tail()
        self.end()
        raise WorkerLost(kind, reason, log)


def spread(
    crew: Sequence[SweepProcess],
    tasks: Iterable[Task],
    work: Callable[[SweepProcess, Task], Iterable[Result]],
) -> Generator[Result]:
    """Results of all tasks as they come; every process takes the next that nobody has taken.

    An error of `work` is raised again. It, or closing the iterator early, kills the crew.
    """
    left = deque(tasks)
    results: SimpleQueue[Result | _Done] = SimpleQueue()
    stopped = Event()

    def drive(process: SweepProcess) -> None:
        error: BaseException | None = None
        try:
            while left and not stopped.is_set():
                with suppress(IndexError):  # another thread took the last one
                    task = left.popleft()
                    for result in work(process, task):
                        results.put(result)
        except BaseException as raised:  # noqa: BLE001 - raised again by the thread that waits
            error = raised
        finally:
            process.end()
            results.put(_Done(error))

    threads = [Thread(target=drive, args=[process], daemon=True) for process in crew]
    for thread in threads:
        thread.start()
    try:
        yield from _until_done(results, len(threads))
    except BaseException:
        stopped.set()
        for process in crew:
            process.kill()
        raise
    finally:
        for thread in threads:
            thread.join()


def _until_done(results: SimpleQueue[Result | _Done], running: int) -> Iterator[Result]:
    while running:
        found = results.get()
        if not isinstance(found, _Done):
            yield found
            continue
        if found.error is not None:
            raise found.error
        running -= 1


@dataclass(frozen=True)
class _Done:
    """A thread has ended; `error` is why, if it should not have."""

    error: BaseException | None
