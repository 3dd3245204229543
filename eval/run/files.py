"""The file of an evaluation's answers: one line for each record, next to its events."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kvproof.harness.errors import UsageError
from kvproof.harness.records.run_directory import LineFile, Manifest

SAMPLES = "samples.jsonl"
"""The file of every evaluation."""

T = TypeVar("T")


class Writer:
    """Appends to the answers of a run's directory; thread-safe. Raises UsageError."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._lock = threading.Lock()
        self._file = LineFile(directory, manifest, SAMPLES)

    def write(self, record: msgspec.Struct) -> None:
        """Append one record and flush it to the operating system."""
        line = msgspec.json.encode(record) + b"\n"
        with self._lock:
            self._file.append(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def stored(**settings: object) -> dict[str, Any]:
    """Return settings as a manifest keeps them, by key."""
    return {key: msgspec.to_builtins(value) for key, value in settings.items()}


def read_options(manifest: Manifest, key: str, kind: type[T]) -> T:
    """Return the settings that a manifest keeps under `key`. Raises UsageError."""
    try:
        return msgspec.convert(manifest.config[key], kind)
    except (KeyError, msgspec.ValidationError) as error:
        raise UsageError(
            f"{manifest.id!r} is no evaluation that this version reads: {error}",
            "use the kvproof that wrote it",
        ) from error
