"""The file of a secret: its first line, and its permissions."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def first_line(path: Path, most: int) -> tuple[int, str]:
    """Return the mode of a file and at most so many characters of its first line (O1).

    Raises OSError, also for all but a regular file, and UnicodeDecodeError.
    """
    with open(path, encoding="utf-8", opener=_without_waiting) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(0, "it is no regular file", str(path))
        return mode, file.readline(most)


def _without_waiting(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NONBLOCK)
