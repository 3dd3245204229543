"""Processes below this one: one that has left its session and its parent still ends with it.

Imports the standard library of Python 3.10 alone: it runs in the environment of engines. Linux has
the two calls that it needs; elsewhere the process group has to do.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import shutil
import signal
from contextlib import suppress
from pathlib import Path

FOLDER = "kvproof-worker-"
"""Beginning of the name of a worker's folder for temporary files, its TMPDIR."""
_PDEATHSIG, _CHILD_SUBREAPER = 1, 36


def adopt() -> bool:
    """Become the parent of each descendant whose own parent ends; whether the system can."""
    return _prctl(_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> bool:
    try:
        return not ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (OSError, AttributeError):  # no Linux
        return False


def end_all() -> None:
    """Kill and reap the children of this process until there are none; see `adopt`."""
    while True:
        for child in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    found, own = [], str(os.getpid())
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            if place.read_text(errors="replace").rpartition(")")[2].split()[1] == own:
                found.append(int(place.parent.name))
    return found


def guarded(source: int) -> bool:
    """Go on in a child, and end all below this process when it ends, or when `source` hangs up.

    Returns in the child alone, True; False if the system cannot do it, and nothing has changed. The
    parent ends as its child did, with the same signal or code.
    """
    if not (hasattr(os, "pidfd_open") and adopt()):
        return False
    child = os.fork()
    if not child:
        _prctl(_PDEATHSIG, signal.SIGKILL)
        return True
    _guard(child, source)
    os._exit(1)


def _guard(child: int, source: int) -> None:
    with Path(os.devnull).open("rb+", buffering=0) as nothing:
        os.dup2(nothing.fileno(), 1)  # the answers are the child's: their end is its end
    poller = select.poll()
    poller.register(source, 0)  # its hang-up is reported without asking for any event
    poller.register(os.pidfd_open(child), select.POLLIN)
    poller.poll()
    pid, status = os.waitpid(child, os.WNOHANG)
    end_all()
    _remove_files()
    if pid and os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    if pid:
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _remove_files() -> None:
    """Remove a worker's folder, which is left where the host was killed."""
    folder = Path(os.environ.get("TMPDIR", ""))
    if folder.name.startswith(FOLDER):
        shutil.rmtree(folder, ignore_errors=True)
