"""Processes of one GPU that prepare side by side and time one at a time.

A lock of the file system: many hold it while they prepare, one alone while it times.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Turns:
    """The lock of one device. Raises OSError if its file belongs to somebody else."""

    def __init__(self, device: str) -> None:
        self.path = Path(tempfile.gettempdir()) / f"kvproof-turns-{os.getuid()}-{device}"
        flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self.path, flags, 0o600)

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """While nobody times."""
        fcntl.flock(self._file, fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While nobody prepares or times; for one that prepares, which it goes on with."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_SH)
