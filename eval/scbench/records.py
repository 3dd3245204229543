"""Records of a run: one line for each answer."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Literal

import msgspec

from kvproof.eval.run.config import EvalConfig
from kvproof.eval.run.records import ServerRecord
from kvproof.eval.scbench.data import Task
from kvproof.harness.errors import UsageError
from kvproof.harness.http.chat_completion import Outcome
from kvproof.harness.records.run_directory import (
    EVALUATION,
    LineFile,
    Manifest,
    read_lines,
    read_manifest,
)

KEY = "scbench"
LINES = "answers.jsonl"

Mode = Literal["turns", "requests"]
"""One conversation, in which own answers are fed back; or requests of their own."""

MODES: tuple[Mode, ...] = ("turns", "requests")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a run."""

    tasks: tuple[Task, ...]
    modes: tuple[Mode, ...]
    sessions: int
    """Of each task."""
    data: str = ""
    """Folder of public files; empty: the miniature."""
    margin: float = 0.1
    """Largest share of right answers (of texts, with that rule) whose loss a pass allows."""
    config: EvalConfig
    weights: str = ""


class Asked(msgspec.Struct, frozen=True, kw_only=True, tag="answer", tag_field="record"):
    """One answer."""

    configuration: str
    level: str
    """Load; empty for a recomputed answer, which is equal for all."""
    mode: Mode
    task: Task
    session: str
    turn: int
    prompt: str
    """SHA-256 of all messages: answers to the same ones are paired."""
    outcome: Outcome
    text: str
    score: float
    prompt_tokens: int | None
    cached_tokens: int | None
    seconds: float
    fault: str = ""


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag="died", tag_field="record"):
    """A server that ended during the run."""

    configuration: str
    message: str
    log: str = ""


Record = Asked | Lost | ServerRecord

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


class Writer:
    """Appends to one run's directory; thread-safe. Raises UsageError."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._lock = threading.Lock()
        if (directory / "run.json").exists():
            raise UsageError(f"{str(directory)!r} holds a run", "choose another --output")
        self._file = LineFile(directory, manifest, LINES)

    def write(self, record: Record) -> None:
        """Append one record and flush it to the operating system."""
        with self._lock:
            self._file.append(_encode(record) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ScbenchRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run read from its directory."""

    directory: Path
    options: Options
    records: list[Record]

    @property
    def answers(self) -> list[Asked]:
        """All answers."""
        return [each for each in self.records if isinstance(each, Asked)]


def is_scbench(directory: Path) -> bool:
    """Whether a directory holds such a run."""
    try:
        manifest = read_manifest(directory)
    except UsageError:
        return False
    return manifest.verb == EVALUATION and KEY in manifest.config


def read_scbench(directory: Path) -> ScbenchRun:
    """Read a run directory. Raises UsageError if it holds no such run."""
    manifest = read_manifest(directory)
    try:
        options = msgspec.convert(manifest.config[KEY], Options)
    except (KeyError, msgspec.ValidationError) as error:
        raise UsageError(
            f"{str(directory)!r} holds no run of kvproof eval scbench: {error}",
            "give the directory that it printed",
        ) from error
    records, _ = read_lines(directory / LINES, _decode)
    return ScbenchRun(directory=directory, options=options, records=records)


def stored(options: Options) -> dict[str, Any]:
    """Return the manifest's part of a run."""
    return {KEY: msgspec.to_builtins(options)}
