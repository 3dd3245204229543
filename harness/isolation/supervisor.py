"""Runs a server, and ends it with all its processes when the parent process is gone.

A server that survives a killed run would hold the memory of the next one. The parent holds the
other end of standard input, which closes when the parent ends. Run as a script, in its own session;
imports only the standard library and `descendants`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from kvproof.harness.isolation.descendants import adopt, end_all

GRACE = 15.0
"""Seconds for a regular shutdown of the server."""


def _end_with_starter() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock would abort our own end
        pass
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE)
    end_all()
    os._exit(1)


def keep(command: Sequence[str]) -> int:
    """Run a command; returns its exit code, or 128 + the number of its signal."""
    # SIGTERM is for the server, whose end is awaited; a handler, unlike SIG_IGN, is not inherited
    signal.signal(signal.SIGTERM, lambda *_: None)
    adopt()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - the user's own
    threading.Thread(target=_end_with_starter, daemon=True).start()
    code = process.wait()
    end_all()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
