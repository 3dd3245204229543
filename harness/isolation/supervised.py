"""A command in a process of its own: awaited with its log, and ended with all it has started.

It runs under `supervisor.py`, which ends it when this process is killed: there are no orphans.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.supervisor import GRACE

T = TypeVar("T")

_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))
_POLL = 0.1
_LOG_TAIL = 4000
"""Characters of a log in an error."""


class Died(Exception):
    """The command has ended, or did not become ready; `log` is the end of its output."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


class Supervised:
    """One running command; as a context manager it is stopped at the end."""

    def __init__(
        self,
        line: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        name: str = "the server",
    ) -> None:
        """Start it; `environment` is added to that of this process. Raises UsageError."""
        more = environment or {}
        if shutil.which(line[0], path=more.get("PATH")) is None:
            hint = "is it installed, and on the path?"
            raise UsageError(f"cannot start {line[0]!r}: there is no such command", hint)
        self._log, self._name = log, name
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - the command is the user's own
                [sys.executable, "-P", _SUPERVISOR, *line],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **more},
                start_new_session=True,
            )

    @property
    def code(self) -> int | None:
        """Its exit code, or 128 + the number of its signal; None while it runs."""
        return self._process.poll()

    def check(self, patience: float = 0.0) -> None:
        """Raise Died if it ends within `patience` seconds."""
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(patience)
            raise Died(f"{self._name} ended with code {code}", self.log_tail())

    def until(self, ready: Callable[[], T], within: float) -> T:
        """Call `ready` until it raises no OSError; returns its result. Raises Died."""
        deadline = time.monotonic() + within
        while True:
            self.check()
            with suppress(OSError):
                return ready()
            if time.monotonic() > deadline:
                raise Died(f"{self._name} was not ready within {within:g} s", self.log_tail())
            time.sleep(_POLL)

    def stop(self) -> None:
        """End it and all its processes: SIGTERM, and SIGKILL after the time of grace."""
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        self._signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _signal(self, which: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, which)

    def log_tail(self) -> str:
        """The end of its output so far."""
        with suppress(OSError):
            return self._log.read_text(errors="replace")[-_LOG_TAIL:]
        return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
