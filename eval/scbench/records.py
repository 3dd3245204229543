"""Records of a run: one line for each answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from kvproof.eval.run.config import EvalConfig
from kvproof.eval.run.files import SAMPLES, read_options
from kvproof.eval.run.records import ServerDied, ServerRecord
from kvproof.eval.scbench.data import Task
from kvproof.harness.http.chat_completion import Outcome
from kvproof.harness.records.run_directory import Manifest, read_lines

KEY = "scbench"

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


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer", tag_field="record"):
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


Record = Answer | ServerDied | ServerRecord

_decode = msgspec.json.Decoder(Record).decode


class ScbenchRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run read from its directory."""

    options: Options
    records: list[Record]

    @property
    def answers(self) -> list[Answer]:
        """All answers."""
        return [each for each in self.records if isinstance(each, Answer)]


def read_scbench(directory: Path, manifest: Manifest) -> ScbenchRun:
    """Read a run directory. Raises UsageError if it holds no such run."""
    records, _ = read_lines(directory / SAMPLES, _decode)
    return ScbenchRun(options=read_options(manifest, KEY, Options), records=records)


def stored(options: Options) -> dict[str, Any]:
    """Return the manifest's part of a run."""
    return {KEY: msgspec.to_builtins(options)}
