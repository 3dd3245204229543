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
        self._share = self._most = max(limit // KEPT, 1)
        self._file, self._size = -1, 0
        self.number = 0
        directory.mkdir(parents=True, exist_ok=True)

    def path(self, number: int) -> Path:
        """Return where a file is, or was."""
        return self._directory / f"{self._stem}.{number:05d}{SUFFIX}"

    @property
    def full(self) -> bool:
        """Whether the next line belongs into the next file."""
        return self._size >= self._most

    def begin(self, opening: bytes) -> None:
        """Drop the oldest file and go on in the next, which begins with `opening`.

        Its limit is at least as large again: with any small limit, most of a file is news. Raises
        OSError; the previous file is then still open, for the reason.
        """
        self.path(self.number + 1 - KEPT).unlink(missing_ok=True)
        path = self.path(self.number + 1)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        try:
            _append(file, opening, 0)
        except OSError:
            os.close(file)
            path.unlink()
            raise
        self.close()
        self._file, self._size, self.number = file, len(opening), self.number + 1
        self._most = max(self._share, 2 * len(opening))

    def write(self, line: bytes) -> None:
        """Append a line. Raises OSError, also if the disk took only a part of it."""
        _append(self._file, line, self._size)
        self._size += len(line)

    def close(self) -> None:
        """Close the file that is open, if any."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _append(file: int, data: bytes, size: int) -> None:
    """Append all of `data` to a file of `size` bytes, or nothing: the next write begins a line."""
    taken = os.write(file, data)
    if taken != len(data):
        os.ftruncate(file, size)
        raise OSError(f"the disk took {taken} of {len(data)} bytes")
