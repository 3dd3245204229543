"""As root: a mount namespace in which only the attack's folder can be written."""

from __future__ import annotations

import ctypes
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18


def apart(work: Callable[[], int]) -> int:
    """Run work in a fork, which may enter what this process stays out of; returns its exit code."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 70
    try:
        code = work()
    except BaseException:  # noqa: BLE001 - the fork must not run on as a second parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def enter(scratch: Path) -> bool:
    """Let this process and its children write nowhere but in a folder; whether that is so now.

    Without root the permissions of the user do the same as far as they go.
    """
    if os.getuid():
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        return False
    place = os.fsencode(scratch)
    steps = (
        (None, b"/", MS_REC | MS_PRIVATE),
        (place, place, MS_BIND),
        (None, b"/", MS_REMOUNT | MS_BIND | MS_RDONLY),
        (b"/dev", b"/dev", MS_BIND | MS_REC),
        (None, b"/dev", MS_REMOUNT | MS_BIND | MS_RDONLY),  # devices work, none is replaced
    )
    return not any(libc.mount(source, goal, None, flags, None) for source, goal, flags in steps)
