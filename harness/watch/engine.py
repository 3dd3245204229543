"""The watched engine as a process below the watcher, which it outlives."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping, Sequence

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.signals import ENDS

_KERNEL = 0x80
"""`si_code` of signals that a terminal sends to all processes of its group."""


class Engine:
    """Starts a command, and passes signals on to it. One at a time, in the main thread.

    From its start on signals that end a command wait until `signals` takes them.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Raises UsageError if the command cannot be run."""
        path = shutil.which(command[0])
        if path is None:
            raise UsageError(
                f"cannot run {command[0]!r}: No such file or directory",
                "write the command as in the shell: kvproof watch -- vllm serve MODEL",
            )
        hold_signals()
        try:
            self.process = os.posix_spawn(path, list(command), environment, setsigmask=[])
        except OSError as error:
            raise UsageError(f"cannot run {command[0]!r}: {error.strerror}") from error
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

    def take(self) -> int | None:
        """Return a signal that came, passed on unless the terminal sent it to both."""
        found = waiting_signal()
        if found is None:
            return None
        number, from_terminal = found
        if not from_terminal and self.poll() is None:
            os.kill(self.process, number)
        return number


def hold_signals() -> None:
    """Let signals that end a command wait."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)


def waiting_signal() -> tuple[int, bool] | None:
    """Return a signal that came, and whether a terminal sent it."""
    found = signal.sigtimedwait(ENDS, 0)
    return (found.si_signo, found.si_code == _KERNEL) if found else None
