"""Runs a server, and ends it with all its processes when whoever started it is gone.

A killed run must not leave a server behind that holds the memory which the next one needs. The
starter holds the other end of standard input; it closes when the starter ends, however it ends.
Run as a script, in a session of its own; imports nothing but the standard library.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

GRACE = 15.0
"""Seconds that a server gets to end in order."""


def _end_with_starter() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock would abort our own end
        pass
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE)
    os.killpg(0, signal.SIGKILL)


def keep(command: Sequence[str]) -> int:
    """Run a command to its end and return its code, 128 and the signal if one ended it."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - the user's own
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is for the server, whose end is awaited
    threading.Thread(target=_end_with_starter, daemon=True).start()
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
