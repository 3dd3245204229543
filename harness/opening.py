"""The one opener of files that a user names: regular files, and nothing else."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "it is a pipe",
    stat.S_IFCHR: "it is a device",
    stat.S_IFBLK: "it is a device",
    stat.S_IFSOCK: "it is a socket",
    stat.S_IFDIR: "it is a folder",
}


def opened(path: Path) -> BufferedReader:
    """Open a file to read it; the one opener of files that a user names.

    Raises OSError, also for all that is no regular file: a pipe waits for ever, a device may have
    no end.
    """
    try:
        refuse_kind(path, path.stat().st_mode)  # to open a device can have effects
    except FileNotFoundError as error:
        if path.is_symlink():
            error.strerror = f"it is a link to {str(path.readlink())[:80]!r}, which is missing"
        raise
    return open(path, "rb", opener=_open)


def _open(name: str, flags: int) -> int:
    descriptor = os.open(name, flags | os.O_NONBLOCK)
    try:
        refuse_kind(name, os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def refuse_kind(path: str | Path, mode: int) -> None:
    """Raise OSError unless the mode is that of a regular file."""
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "it is no regular file")
        raise OSError(errno.EINVAL, kind, os.fspath(path))
