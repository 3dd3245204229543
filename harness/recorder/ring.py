"""The lines of a recording in shared memory, for a process that judges them while they are written.

One writer, one reader, one file of fixed size. The writer never waits: a line without room is
dropped and counted, and with it all later ones, until the reader has made room for a new beginning.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
import zlib
from pathlib import Path

MAGIC, FIRST = 0x31474E49524B564B, 4096
"""Begins each file; offset of its first line."""

SUFFIX, REFUSED = ".kvring", ".refused"

_MAGIC, _SIZE, _WRITTEN, _READ, _DROPPED, _CLOSED, _ASKED = range(7)
"""Numbers of 8 bytes at the beginning of the file: bytes and lines since it was made."""

_HEAD = 8
_AGAIN = 1.0
"""Seconds from one new beginning to the next: each costs the engine time for all its requests."""


class RingWriter:
    """Takes the place of files (`rotation.Segments`) where a watcher reads the lines."""

    def __init__(self, directory: Path, stem: str, size: int) -> None:
        """`size`: bytes for lines, reserved now: without them a write would end the process.

        Raises OSError.
        """
        directory.mkdir(parents=True, exist_ok=True)
        final = directory / f"{stem}{SUFFIX}"
        path = final.with_suffix(".new")
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._file, 0, FIRST + size)
            self._bytes = mmap.mmap(self._file, FIRST + size)
        except OSError:
            os.close(self._file)
            path.unlink()
            raise
        self._numbers = memoryview(self._bytes)[:FIRST].cast("Q")
        self._room, self._lost, self._next = size, False, 0.0
        self._written = self._asked = self.number = 0
        self._numbers[_SIZE], self._numbers[_MAGIC] = size, MAGIC
        fcntl.flock(self._file, fcntl.LOCK_EX)  # released when this process has ended
        path.rename(final)

    @property
    def full(self) -> bool:
        """Whether a new beginning is needed, and there may be room for it."""
        if not self._lost and self._numbers[_ASKED] == self._asked:
            return False
        free = self._room - self._written + self._numbers[_READ]
        return free > self._room // 2 and time.monotonic() >= self._next

    def begin(self, opening: bytes) -> None:
        """Begin anew: `opening` has the header, and all requests that hold blocks."""
        self.number += 1
        self._asked = self._numbers[_ASKED]
        self._next = time.monotonic() + _AGAIN
        self._lost = False
        for line in opening.splitlines(keepends=True):
            self.write(line)

    def write(self, line: bytes) -> None:
        """Append a line, or count it as dropped."""
        size, start = len(line), self._written
        if self._lost or size + _HEAD > self._room - start + self._numbers[_READ]:
            self._lost = True
            self._numbers[_DROPPED] += 1
            return
        self._put(start, size.to_bytes(4, "little") + zlib.crc32(line).to_bytes(4, "little") + line)
        self._written = self._numbers[_WRITTEN] = start + size + _HEAD

    def _put(self, start: int, data: bytes) -> None:
        at = FIRST + start % self._room
        first = min(len(data), FIRST + self._room - at)
        self._bytes[at : at + first] = data[:first]
        if first < len(data):
            self._bytes[FIRST : FIRST + len(data) - first] = data[first:]

    def close(self) -> None:
        """Nothing more is written."""
        self._numbers[_CLOSED] = 1


class RingReader:
    """The other side. It holds a map of the file, which may be removed meanwhile."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, and ValueError for another file."""
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        size = os.fstat(self._file).st_size
        if size <= FIRST:
            os.close(self._file)
            raise ValueError(f"{str(path)!r} is no ring")
        self._bytes = mmap.mmap(self._file, size)
        self._numbers = memoryview(self._bytes)[:FIRST].cast("Q")
        self.size = self._numbers[_SIZE]
        if self._numbers[_MAGIC] != MAGIC or self.size != size - FIRST:
            raise ValueError(f"{str(path)!r} is no ring")
        self._read = self._numbers[_READ]
        if self._read:  # another watcher took the beginning
            self._numbers[_ASKED] += 1

    @property
    def waiting(self) -> int:
        """Bytes that are not read yet."""
        waiting: int = self._numbers[_WRITTEN] - self._read
        return waiting

    @property
    def dropped(self) -> int:
        """Lines that had no room, since the beginning."""
        dropped: int = self._numbers[_DROPPED]
        return dropped

    def over(self) -> bool:
        """Whether no line will come: the writer closed it, or its process has ended."""
        if self._numbers[_CLOSED]:
            return True
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def take(self) -> bytes | None:
        """Return the next line. None: there is none, or not all of it can be seen yet."""
        if not self.waiting:
            return None
        head = self._get(self._read, _HEAD)
        size = int.from_bytes(head[:4], "little")
        if size + _HEAD > self.waiting:
            return None
        line = self._get(self._read + _HEAD, size)
        if zlib.crc32(line) != int.from_bytes(head[4:], "little"):
            return None  # processors other than x86 may show the length before the line
        self._read += size + _HEAD
        self._numbers[_READ] = self._read
        return line

    def _get(self, start: int, size: int) -> bytes:
        at = FIRST + start % self.size
        data = self._bytes[at : min(at + size, FIRST + self.size)]
        return data + self._bytes[FIRST : FIRST + size - len(data)]

    def close(self) -> None:
        """Give the memory back."""
        self._numbers.release()
        self._bytes.close()
        os.close(self._file)
