"""The watched engine as a process below the watcher, which it outlives."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.signals import ENDS

AS_TYPED = "write the command as in the shell: kvproof watch -- vllm serve MODEL"


class Engine:
    """Starts a command, and passes signals on to it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Raises UsageError if the command cannot be run."""
        path = runnable(command[0])
        try:
            self.process = os.posix_spawn(path, list(command), environment)
        except OSError as error:
            raise UsageError(f"cannot run {command[0]!r}: {error.strerror}", AS_TYPED) from error
        self.code: int | None = None
        """Its exit code, 128 and more for a signal; None: it runs."""

    def poll(self) -> int | None:
        """Return the exit code if it has ended."""
        if self.code is None:
            process, status = os.waitpid(self.process, os.WNOHANG)
            if process:
                code = os.waitstatus_to_exitcode(status)
                self.code = 128 - code if code < 0 else code
        return self.code

    def send(self, number: int) -> None:
        """Pass a signal on, unless the terminal has sent it to both."""
        if self.poll() is None and not (number == signal.SIGINT and _in_front()):
            os.kill(self.process, number)


def runnable(program: str) -> str:
    """Return the path of a program. Raises UsageError if there is none."""
    path = shutil.which(program)
    if path is None:
        raise UsageError(f"cannot run {program!r}: No such file or directory", AS_TYPED)
    return path


def _in_front() -> bool:
    """Whether Ctrl-C in our terminal reaches us, and the engine with us."""
    with suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDONLY)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False


@contextmanager
def collected() -> Iterator[list[int]]:
    """Collect the signals that end a command; in the main thread."""
    received: list[int] = []
    before = {each: signal.getsignal(each) for each in ENDS}
    kept = [each for each, handler in before.items() if handler is not signal.SIG_IGN]
    try:
        for each in kept:
            signal.signal(each, lambda number, _: received.append(number))
        yield received
    finally:
        for each in kept:
            signal.signal(each, before[each])
