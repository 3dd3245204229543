"""Parallel worker processes for tasks; one that dies or hangs is replaced.

A worker reads JSON lines and answers with JSON lines (see `host.Host`). One thread
drives one worker; all results go through one queue to the caller.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from kvproof.harness.isolation.process import WorkerProcess, exit_in_words

Task = TypeVar("Task")
Result = TypeVar("Result")
Answer = TypeVar("Answer")
Loss: TypeAlias = Literal["timeout", "crash", "start"]

encode = msgspec.json.Encoder().encode


class WorkerLost(Exception):
    """A worker ended, hung or did not start; the next message starts another."""

    def __init__(self, kind: Loss, reason: str, log: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.log = log
        self.code = code
        """Exit status, negative for a signal; None if it is not known."""


class Worker(Generic[Answer]):
    """One process that is started when it is needed. One thread uses it; any may `kill` it."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        decode: Callable[[bytes], Answer],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start nothing yet. `decode` reads a line, and raises MsgspecError if it cannot."""
        self._command, self._log, self._environment = command, log, environment
        self._decode = decode
        self._process: WorkerProcess | None = None
        self._killed = False
        self._lock = threading.Lock()
        """Between starting a process and `kill`, which must not miss it."""

    def start(self) -> bool:
        """Start the process unless it runs; whether it was started. Raises WorkerLost(`start`)."""
        with self._lock:
            if self._process is not None:
                return False
            if self._killed:
                raise WorkerLost("start", "the pool is being stopped", "")
            self._process = WorkerProcess(self._command, self._log, environment=self._environment)
            return True

    def ask(self, message: object, timeout: float) -> Answer:
        """Send a message and wait for one answer, `timeout` seconds in all. Raises WorkerLost."""
        self.start()
        return self._guarded(lambda process: process.exchange(encode(message), timeout), timeout)

    def send(self, message: object, timeout: float) -> None:
        """Send a message. Raises WorkerLost."""
        self.start()
        self._guarded(lambda process: process.send(encode(message), timeout), timeout)

    def receive(self, timeout: float) -> Answer:
        """Wait for one more answer to an earlier message. Raises WorkerLost."""
        return self._guarded(lambda process: process.receive(timeout), timeout)

    def _guarded(self, use: Callable[[WorkerProcess], bytes | None], timeout: float) -> Answer:
        process = self._process
        if process is None:
            raise WorkerLost("crash", "the worker is not running", "")
        code: int | None = None
        kind: Loss = "crash"
        try:
            line = use(process)
            return self._decode(line) if line is not None else None  # type: ignore[return-value]  # of `send`, which returns nothing
        except TimeoutError:
            kind, reason = "timeout", f"no answer within {timeout:g} s"
        except EOFError:
            code = process.exit_code()
            reason = "the worker closed its pipe" if code is None else exit_in_words(code)
        except msgspec.MsgspecError as error:
            reason = f"the worker talked nonsense: {error}"
        log = process.log_tail()
        self.end()
        raise WorkerLost(kind, reason, log, code)

    def end(self) -> None:
        """End the process; the next message starts another."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.end()

    def interrupt(self) -> None:
        """Send SIGTERM to the process, from another thread than that which uses it."""
        with self._lock:
            if self._process is not None:
                self._process.interrupt()

    def kill(self) -> None:
        """Kill the process from another thread than that which uses it, for good."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()


class Stoppable(Protocol):
    """A worker as a pool sees it."""

    def end(self) -> None:
        """End the process; called by the thread that uses it."""

    def kill(self) -> None:
        """Kill the process for good; called by any thread."""


W = TypeVar("W", bound=Stoppable)


def run_on_pool(
    workers: Sequence[W],
    tasks: Iterable[Task],
    work: Callable[[W, Task], Iterable[Result]],
    *,
    done: Callable[[W], None] | None = None,
) -> Generator[Result]:
    """Yield the results of all tasks as they come; every worker takes the next free task.

    A worker that finds none left is ended, or `done` is called with it. An error of `work` is
    raised again. It, or closing the iterator early, kills the workers.
    """
    left = deque(tasks)
    results: SimpleQueue[Result | _Done] = SimpleQueue()
    stopped = threading.Event()

    def drive(worker: W) -> None:
        error: BaseException | None = None
        try:
            while left and not stopped.is_set():
                with suppress(IndexError):  # another thread took the last one
                    task = left.popleft()
                    for result in work(worker, task):
                        results.put(result)
        except BaseException as raised:  # noqa: BLE001 - raised again by the thread that waits
            error = raised
        finally:
            (worker.end if stopped.is_set() or error or not done else partial(done, worker))()
            results.put(_Done(error))

    threads: list[threading.Thread] = []
    try:
        for each in workers:
            thread = threading.Thread(target=drive, args=[each], daemon=True)
            thread.start()
            threads.append(thread)
        yield from _until_done(results, len(threads))
    except BaseException:
        stopped.set()
        for worker in workers:
            worker.kill()
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
    error: BaseException | None
