"""The file operations that a disk tier is made of; each may fail or be the last of a process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from kvproof.reference.core.validation import ConfigError
from kvproof.reference.stores.object_store import Bytes


class Files(Protocol):
    """A folder. Every operation but `names` raises OSError (G7)."""

    def names(self) -> list[tuple[str, int]]:
        """Return names and bytes of all files, the oldest first."""

    def head(self, name: str, count: int) -> bytes:
        """Return the first bytes of a file."""

    def write(self, name: str, parts: Sequence[Bytes]) -> None:
        """Write a new file; its bytes are on the disk when this returns."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, at once or not at all."""

    def view(self, name: str) -> memoryview:
        """Return the bytes of a file; they stay readable when it is removed."""

    def remove(self, name: str) -> None:
        """Remove a file."""


class Folder:
    """Files of one folder, which no other process may use as long as this object lives (G7)."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError for a folder that cannot be written, or that is in use."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"disk_tier {str(path)!r} must be a folder to write to: {error}"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise ConfigError(
                f"disk_tier {str(path)!r} is in use by another process; give each its own folder"
            ) from error

    @property
    def closed(self) -> bool:
        """Return whether other processes may use the folder."""
        return self._lock < 0

    def close(self) -> None:
        """Let other processes use the folder."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()

    def names(self) -> list[tuple[str, int]]:
        """See `Files`."""
        with os.scandir(self.path) as entries:
            found = [(entry.name, entry.stat()) for entry in entries if entry.is_file()]
        found.sort(key=lambda each: (each[1].st_mtime_ns, each[0]))
        return [(name, status.st_size) for name, status in found if name != "lock"]

    def head(self, name: str, count: int) -> bytes:
        """See `Files`."""
        with (self.path / name).open("rb") as file:
            return file.read(count)

    def write(self, name: str, parts: Sequence[Bytes]) -> None:
        """See `Files`."""
        with (self.path / name).open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, old: str, new: str) -> None:
        """See `Files`."""
        (self.path / old).replace(self.path / new)

    def view(self, name: str) -> memoryview:
        """See `Files`. A copy: maps of many files would need as many descriptors."""
        return memoryview((self.path / name).read_bytes())

    def remove(self, name: str) -> None:
        """See `Files`."""
        (self.path / name).unlink()
