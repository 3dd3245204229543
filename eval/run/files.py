"""The directory of an evaluation's run: a manifest, and a file with one line for each record."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TypeVar

import msgspec

from kvproof.harness.errors import UsageError
from kvproof.harness.records.run_directory import EVALUATION, LineFile, Manifest, read_manifest

T = TypeVar("T")


class Writer:
    """Appends to one run's directory; thread-safe. Raises UsageError."""

    def __init__(
        self, directory: Path, manifest: Manifest, name: str, *, resumes: bool = False
    ) -> None:
        """Open the file `name`; a directory that holds a run is refused unless it resumes one."""
        if not resumes and (directory / "run.json").exists():
            raise UsageError(f"{str(directory)!r} holds a run", "choose another --output")
        self.directory, self._lock = directory, threading.Lock()
        self._file = LineFile(directory, manifest, name)

    def write(self, record: msgspec.Struct) -> None:
        """Append one record and flush it to the operating system."""
        line = msgspec.json.encode(record) + b"\n"
        with self._lock:
            self._file.append(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def is_run(directory: Path, key: str) -> bool:
    """Whether a directory holds an evaluation with settings under `key`."""
    try:
        manifest = read_manifest(directory)
    except UsageError:
        return False
    return manifest.verb == EVALUATION and key in manifest.config


def read_options(directory: Path, key: str, kind: type[T]) -> T:
    """Return the settings that the manifest keeps under `key`. Raises UsageError."""
    try:
        return msgspec.convert(read_manifest(directory).config[key], kind)
    except (KeyError, msgspec.ValidationError) as error:
        raise UsageError(
            f"{str(directory)!r} holds no run of kvproof eval {key}: {error}",
            "give the directory that it printed",
        ) from error
