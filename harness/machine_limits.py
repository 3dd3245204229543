"""Errors that are a limit or a permission of the machine: exit code 2 wherever they come up."""

from __future__ import annotations

import errno

NO_MEMORY = ("there is not enough memory", "raise its limit (ulimit -v), or ask for less")
_OF_THE_SYSTEM = {
    errno.EACCES, errno.EDQUOT, errno.EEXIST, errno.EFBIG, errno.EIO, errno.EISDIR, errno.ELOOP,
    errno.EMFILE, errno.ENAMETOOLONG, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.ENOTDIR,
    errno.EPERM, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.EREMOTEIO,
    errno.ENOTCONN,
}  # fmt: skip
_OF_PYTHON = {
    "can't start new thread": NO_MEMORY,
    "failed to map segment from shared object": NO_MEMORY,
    "error return without exception set": NO_MEMORY,  # CPython, where an allocation fails
    "No usable temporary directory": (
        "no temporary file can be written",
        "free some space, or set TMPDIR to a folder on another disk",
    ),
}
"""Python's own messages for limits of the machine -> ours."""


def limit_of_the_machine(error: Exception) -> tuple[str, str] | None:
    """Return the limit that an error names, and the next step; None for any other error."""
    if isinstance(error, MemoryError):
        return NO_MEMORY
    if getattr(error, "errno", None) in _OF_THE_SYSTEM:  # of OSError and of ZeroMQ
        filename = getattr(error, "filename", "")
        where = f"{str(filename)!r}: " if filename else ""
        return (
            f"{where}{getattr(error, 'strerror', '') or error}",
            "see that it can be used, then repeat the command",
        )
    return next((ours for words, ours in _OF_PYTHON.items() if words in str(error)), None)
