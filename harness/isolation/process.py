"""One worker process: lines over pipes with deadlines, its log, and how it ended."""

from __future__ import annotations

import math
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_LOG_TAIL = 6000
"""Characters of a worker's log that go into a verdict."""

_LARGEST_ANSWER = 1 << 28
"""Bytes without an end of line after which an answer is garbage rather than long."""

_PATIENCE = 2.0
"""Seconds in which a worker that closed its pipe should have ended."""


def exit_in_words(code: int) -> str:
    """Spell out an exit status as `subprocess` and `multiprocessing` report it."""
    if code >= 0:
        return f"the worker exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal but the first and the last has no name
        name = f"signal {-code}"
    return f"the worker was killed by {name}"


def _wait(poller: select.poll, deadline: float) -> None:
    left = max(0.0, deadline - time.monotonic())
    if not poller.poll(left * 1000 if math.isfinite(left) else None):
        raise TimeoutError


def _started(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    with log.open("ab") as stderr:
        return subprocess.Popen(  # noqa: S603 - the command is built by WorkerHandle
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            bufsize=0,
            start_new_session=True,
        )


class WorkerProcess:
    """One running worker: lines with deadlines, its log, and how it ended."""

    def __init__(
        self, command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        from kvproof.harness.isolation.descendants import FOLDER  # a refused command needs none

        log.parent.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.mkdtemp(prefix=FOLDER)
        """For its temporary files, which it may not have removed when it ends."""
        self._log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        own = {**(os.environ if environment is None else environment), "TMPDIR": self._folder}
        try:
            self._process = _started(command, log, own)
        except OSError:
            self._remove_files()
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._sink, self._source = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._sink, False)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._source, select.POLLIN)
        self._writable.register(self._sink, select.POLLOUT)
        self._rest = bytearray()
        """Bytes read and not yet requested."""

    def exchange(self, message: bytes, timeout: float) -> bytes:
        """Send one line and wait for one. Raises TimeoutError, or EOFError if the worker ended."""
        deadline = time.monotonic() + timeout
        self.send(message, timeout)
        return self.receive(deadline - time.monotonic())

    def send(self, message: bytes, timeout: float) -> None:
        """Send one line. Raises as `exchange`."""
        try:
            self._write(message + b"\n", time.monotonic() + timeout)
        except BrokenPipeError as error:
            raise EOFError from error

    def receive(self, timeout: float) -> bytes:
        """Wait for one line. Raises as `exchange`."""
        deadline = time.monotonic() + timeout
        searched = 0
        while (end := self._rest.find(b"\n", searched)) < 0 and searched < _LARGEST_ANSWER:
            searched = len(self._rest)
            _wait(self._readable, deadline)
            chunk = os.read(self._source, 1 << 20)
            if not chunk:
                raise EOFError
            self._rest += chunk
        size = end + 1 or len(self._rest)
        line, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return line

    def _write(self, message: bytes, deadline: float) -> None:
        left = memoryview(message)
        while left:
            try:
                left = left[os.write(self._sink, left) :]
            except BlockingIOError:
                _wait(self._writable, deadline)

    def exit_code(self) -> int | None:
        """Exit status after the pipe has closed, negative for a signal; None if it still runs."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(_PATIENCE)
        return None

    def how_it_ended(self) -> str:
        """In words, after the pipe has closed."""
        code = self.exit_code()
        return "the worker closed its pipe" if code is None else exit_in_words(code)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def end(self, patience: float = 0.0) -> None:
        """Close its input, wait `patience` seconds, kill the process group, remove its files."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        if patience:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        self.kill()
        self._process.wait()
        self._remove_files()

    def _remove_files(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """Kill the process group; a waiting reader gets the end of the pipe."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def interrupt(self) -> None:
        """Send SIGTERM to the worker alone; its own processes go on."""
        self._process.terminate()

    def log_tail(self) -> str:
        """The end of this process's log."""
        with self._log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - _LOG_TAIL))
            return log.read().decode(errors="replace")
