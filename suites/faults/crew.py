"""Processes that judge one fault each, a few side by side."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from kvproof.harness.errors import ANSWERS
from kvproof.harness.isolation.process import exit_in_words
from kvproof.harness.records.fault_events import FaultJudged, Kill
from kvproof.suites.faults.catalogue import Fault
from kvproof.suites.faults.messages import Job, Line, Said
from kvproof.suites.faults.verdict import CRASH, judged

HANG = "hang"
"""The oracle of a fault that does not come to an end."""
CORRUPTED = frozenset({signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV})
"""Signals by which a process ends whose memory its own code has damaged."""
COMMAND = (sys.executable, "-m", "kvproof.suites.faults.child")
"""Judges the one fault that its standard input names."""
_TAIL = 1000
"""Characters of a process' log that are told."""


class Doing(NamedTuple):
    """How far a fault is."""

    fault: Fault
    suite: str
    done: int


class Broke(NamedTuple):
    """The process of a fault ended without a word about it: a fault of kvproof.

    Unless it was judging already and its memory was damaged: that is the planted fault's doing.
    """

    fault: Fault
    message: str
    log: str


Report: TypeAlias = Doing | FaultJudged | Broke


class Crew:
    """Judges faults; a context manager that leaves no process behind."""

    def __init__(
        self,
        faults: Sequence[Fault],
        *,
        budget: str,
        seed: int | None,
        directory: Path,
        workers: int,
        limit: float,
    ) -> None:
        """Take `limit`: after so many seconds without a finished test case, a fault hangs."""
        self._left = deque(faults)
        self._job = (budget, seed, str(directory))
        self._limit = limit
        self._heard: queue.Queue[Report | None] = queue.Queue()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]

    def __enter__(self) -> Crew:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._closed = True
            self._left.clear()
            for process in self._processes:
                _kill(process)
        for thread in self._threads:
            thread.join()

    def reports(self) -> Iterator[Report]:
        """Yield what is heard until all faults are judged."""
        working = len(self._threads)
        while working:
            report = self._heard.get()
            if report is None:
                working -= 1
            else:
                yield report

    def _work(self) -> None:
        try:
            while fault := self._next():
                self._judge(fault)
        finally:
            self._heard.put(None)

    def _next(self) -> Fault | None:
        with suppress(IndexError):
            return self._left.popleft()
        return None

    def _judge(self, fault: Fault) -> None:
        """Run one process to its end, or to the limit."""
        process = self._start()
        if process is None:
            return
        late = threading.Event()
        clock = _Clock(self._limit, lambda: _end(process, late))
        log: list[bytes] = []
        begin = time.monotonic()
        assert process.stderr is not None
        listener = threading.Thread(target=lambda: log.extend(process.stderr or ()), daemon=True)
        listener.start()
        try:
            with process:  # closes its pipes
                last = self._listen(process, fault, clock)
                listener.join()
        finally:
            clock.stop()
            with self._lock:
                self._processes.discard(process)
        if isinstance(last, FaultJudged) or self._closed:
            return
        if late.is_set():
            self._heard.put(self._hung(fault))
        elif last and -process.returncode in CORRUPTED:
            self._heard.put(_crashed(fault, process, log, last, time.monotonic() - begin))
        else:
            self._heard.put(_broke(fault, process, log))

    def _start(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._closed:
                return None
            process = subprocess.Popen(  # noqa: S603 - our own command
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._processes.add(process)
            return process

    def _listen(self, process: subprocess.Popen[bytes], fault: Fault, clock: _Clock) -> Line | None:
        """Pass on what the process says; returns the last of it."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError), process.stdin as sink:
            sink.write(msgspec.json.encode(Job(fault.name, *self._job)))
        line: Line | None = None
        for text in process.stdout:
            clock.start()
            line = msgspec.json.decode(text, type=Line)
            self._heard.put(Doing(fault, line.suite, line.done) if isinstance(line, Said) else line)
        return line

    def _hung(self, fault: Fault) -> FaultJudged:
        kill = Kill(
            suite="",
            property=ANSWERS,
            oracle=HANG,
            sentence=f"no test case ends within {self._limit:g} s",
            cases=0,
            seconds=self._limit,
            size=0,
        )
        return judged(fault, kill, seconds=self._limit)


def _broke(fault: Fault, process: subprocess.Popen[bytes], log: Sequence[bytes]) -> Broke:
    text = _text(log)
    last = text.splitlines()[-1] if text else exit_in_words(process.returncode)
    return Broke(fault, last, text[-_TAIL:])


def _crashed(
    fault: Fault, process: subprocess.Popen[bytes], log: Sequence[bytes], last: Said, seconds: float
) -> FaultJudged:
    """The reference or a kernel has damaged the memory of its process while it was judged."""
    said = [exit_in_words(process.returncode), *_text(log).splitlines()[-1:]]
    kill = Kill(
        suite=last.suite,
        property=ANSWERS,
        oracle=CRASH,
        sentence=": ".join(said),
        cases=last.done + 1,
        seconds=round(seconds, 3),
        size=0,
    )
    return judged(fault, kill, cases=last.done + 1, seconds=seconds)


def _text(log: Sequence[bytes]) -> str:
    return b"".join(log).decode(errors="replace").strip()


class _Clock:
    """Calls `ring` once nothing was heard for `limit` seconds."""

    def __init__(self, limit: float, ring: Callable[[], None]) -> None:
        self._limit, self._ring = limit, ring
        self._timer = threading.Timer(limit, ring)
        self._timer.start()

    def start(self) -> None:
        """Begin anew: something was heard."""
        self._timer.cancel()
        self._timer = threading.Timer(self._limit, self._ring)
        self._timer.start()

    def stop(self) -> None:
        """Ring no more."""
        self._timer.cancel()


def _end(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    late.set()
    _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
