"""Processes that judge one fault each, a few side by side."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from kvproof.harness.fault_events import FaultJudged, Kill
from kvproof.harness.worker_process import exit_in_words
from kvproof.suites.faults.catalogue import Fault
from kvproof.suites.faults.messages import Job, Line, Said
from kvproof.suites.faults.verdict import judged

HANG = "hang"
"""The oracle of a fault that does not come to an end."""
_TAIL = 1000
"""Characters of a process' log that are told."""


class Doing(NamedTuple):
    """How far a fault is."""

    fault: Fault
    suite: str
    done: int


class Broke(NamedTuple):
    """The process of a fault ended without a word about it: a fault of kvproof."""

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
        """Take `limit`, the seconds after which a fault counts as one that hangs."""
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
        timer = threading.Timer(self._limit, _end, (process, late))
        timer.start()
        log: list[bytes] = []
        assert process.stderr is not None
        listener = threading.Thread(target=lambda: log.extend(process.stderr or ()), daemon=True)
        listener.start()
        try:
            with process:  # closes its pipes
                told = self._listen(process, fault)
                listener.join()
        finally:
            timer.cancel()
            with self._lock:
                self._processes.discard(process)
        if not told and not self._closed:
            self._heard.put(self._hung(fault) if late.is_set() else _broke(fault, process, log))

    def _start(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._closed:
                return None
            process = subprocess.Popen(
                [sys.executable, "-m", "kvproof.suites.faults.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._processes.add(process)
            return process

    def _listen(self, process: subprocess.Popen[bytes], fault: Fault) -> bool:
        """Pass on what the process says; tell whether it judged the fault."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError), process.stdin as sink:
            sink.write(msgspec.json.encode(Job(fault.name, *self._job)))
        told = False
        for text in process.stdout:
            line = msgspec.json.decode(text, type=Line)
            told = told or isinstance(line, FaultJudged)
            self._heard.put(Doing(fault, line.suite, line.done) if isinstance(line, Said) else line)
        return told

    def _hung(self, fault: Fault) -> FaultJudged:
        kill = Kill(
            suite="",
            property="every_verb_answers",
            oracle=HANG,
            sentence=f"no end within {self._limit:g} s",
            cases=0,
            seconds=self._limit,
            size=0,
        )
        return judged(fault, kill, seconds=self._limit)


def _broke(fault: Fault, process: subprocess.Popen[bytes], log: Sequence[bytes]) -> Broke:
    text = b"".join(log).decode(errors="replace").strip()
    last = text.splitlines()[-1] if text else exit_in_words(process.returncode)
    return Broke(fault, last, text[-_TAIL:])


def _end(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    late.set()
    _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
