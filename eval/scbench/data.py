"""Sessions of SCBench: one context and questions about it, in the public file format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from kvproof.eval.benchmark.json_stream import BrokenStream, Piece, objects
from kvproof.harness.errors import UsageError
from kvproof.harness.opening import opened

Task = Literal["kv", "prefix_suffix", "vt", "choice_eng"]

TASKS: tuple[Task, ...] = ("kv", "prefix_suffix", "vt", "choice_eng")
"""Tasks whose answers need no model and no library to be scored."""

LETTERS = "ABCD"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One question, with the published names."""

    input: str
    answer: str | tuple[str, ...]
    """A text; for `vt` all names."""
    options: tuple[str, ...] = ()
    """Four of them for `choice_eng`."""

    @property
    def answers(self) -> tuple[str, ...]:
        """All texts that a right answer holds."""
        return (self.answer,) if isinstance(self.answer, str) else self.answer


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a file; further fields are ignored."""

    context: str
    multi_turns: tuple[Turn, ...]
    id: str | int = ""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A context with its questions."""

    task: Task
    id: str
    context: str
    turns: tuple[Turn, ...]


_decode = msgspec.json.Decoder(_Row).decode


def file_of(folder: Path, task: Task) -> Path:
    """Path of a task's file, named as the public one."""
    return folder / f"scbench_{task}.jsonl"


def read_sessions(folder: Path, tasks: Sequence[Task], *, most: int) -> list[Session]:
    """Read at most so many sessions of each task. Raises UsageError with file, row and field."""
    return [each for task in tasks for each in _of_task(folder, task, most)]


def _of_task(folder: Path, task: Task, most: int) -> Iterator[Session]:
    path = file_of(folder, task)
    count = 0
    try:
        with opened(path) as file:
            for piece in objects(file.read):
                if count == most:
                    return
                yield _session(path, task, piece)
                count += 1
    except BrokenStream as error:
        raise UsageError(f"{str(path)!r}, row {error.index}: {error}", _FORMAT) from error
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}", _FORMAT) from error
    if not count:
        raise UsageError(f"{str(path)!r} has no sessions", _FORMAT)


def _session(path: Path, task: Task, piece: Piece) -> Session:
    where = f"{str(path)!r}, row {piece.number}"
    try:
        row = _decode(piece.data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: {error}", _FORMAT) from error
    if not row.multi_turns:
        raise UsageError(f"{where}: multi_turns is empty", _FORMAT)
    for each in row.multi_turns if task == "choice_eng" else ():
        if len(each.options) != len(LETTERS) or each.answer not in each.options:
            raise UsageError(f"{where}: no four options with the answer among them", _FORMAT)
    identity = str(row.id) or str(piece.number)
    return Session(task=task, id=identity, context=row.context, turns=row.multi_turns)


_FORMAT = (
    "give a folder with files scbench_kv.jsonl and so on, of microsoft/SCBench: a row has context "
    "and multi_turns, a list of input and answer (and options); or leave --data out"
)
