"""Append-only files of bounded size: the oldest go when there are too many."""

from __future__ import annotations

import os
from pathlib import Path

KEPT = 4
"""Files that a recording consists of at most."""

SUFFIX = ".kvrec"


class Segments:
    """The files of one cache: `<stem>.00001.kvrec`, `<stem>.00002.kvrec`, ...

    Every line reaches the operating system before `write` returns, so that a killed process loses
    nothing, and a machine that loses power at most a torn last line.
    """

    def __init__(self, directory: Path, stem: str, limit: int) -> None:
        """`limit`: bytes that all files together may take. Raises OSError."""
        self._directory, self._stem = directory, stem
        self._limit = max(limit // KEPT, 1)
        self._file, self._size = -1, 0
        self.number = 0
        directory.mkdir(parents=True, exist_ok=True)

    def path(self, number: int) -> Path:
        """Return where a file is, or was."""
        return self._directory / f"{self._stem}.{number:05d}{SUFFIX}"

    @property
    def full(self) -> bool:
        """Tell whether the next line belongs into the next file."""
        return self._size >= self._limit

    def begin(self, header: bytes) -> None:
        """Open the next file, and drop the oldest. Raises OSError."""
        self.close()
        self.number += 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file, self._size = os.open(self.path(self.number), flags, 0o600), 0
        self.write(header)
        self.path(self.number - KEPT).unlink(missing_ok=True)

    def write(self, line: bytes) -> None:
        """Append a line. Raises OSError, also if the disk took only a part of it."""
        if os.write(self._file, line) != len(line):
            raise OSError(f"the disk took a part of {len(line)} bytes")
        self._size += len(line)

    def close(self) -> None:
        """Close the file that is open, if any."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
