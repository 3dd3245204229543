"""Run records: `run.json` and the append-only `events.jsonl` of one run directory.

Everything a report shows comes from these two files. The writer flushes each event as one line,
so a killed run loses at most the event being written; the reader skips a torn last line and
nothing else. Unknown fields are ignored, so that newer code reads older runs.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from io import BufferedRandom
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kvproof.harness.decoding import read_bounded
from kvproof.harness.errors import UsageError
from kvproof.harness.foreign_text import cut_json
from kvproof.harness.opening import refuse_kind
from kvproof.harness.records.events import AnyEvent, Ended, Failure, Skipped
from kvproof.harness.records.renamed import upgraded
from kvproof.harness.records.resume import continuous
from kvproof.harness.redaction import redacted_bytes

SCHEMA_VERSION = 1

EVENTS = "events.jsonl"
MOST_LEVELS = 200
"""Folders that an output lies in."""
MOST_FAILURES = 1_000
"""Failures that are read; a campaign groups its own by fingerprint and has some dozens."""

GIVE = "give the directory that a run printed, for example runs/latest"
"""The next step where a directory holds no run."""

T = TypeVar("T")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`run.json`: command, settings and environment of a run."""

    schema: int = SCHEMA_VERSION
    id: str
    verb: str
    command: list[str]
    started: str
    """ISO 8601, UTC."""
    config: dict[str, Any]
    seed: int | None = None
    versions: dict[str, str]
    hardware: dict[str, str]
    commit: str | None = None
    interpreter: str = ""
    """Path of the Python that ran it."""
    folder: str = ""
    """Working directory, from which targets of the user's own are imported."""


_FAILURE = b'{"event":"failure",'
"""The beginning of a failure's line."""
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(AnyEvent)

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Decoding errors for bytes that are not JSON, not the record, nested too deep, or no text."""


def _decode(line: bytes) -> AnyEvent:
    return upgraded(_decoder.decode(cut_json(line)))


def _line(event: AnyEvent) -> bytes:
    return _encoded(event) + b"\n"


def _encoded(record: AnyEvent | Manifest) -> bytes:
    try:
        return _encode(record)
    except UnicodeEncodeError:  # a message may hold bytes that are no text, say a file name
        text = json.dumps(msgspec.to_builtins(record), ensure_ascii=False)
        return text.encode(errors="replace")


class LineFile:
    """Appends to the file `name` of a run directory, as the only process that does.

    Raises UsageError if it is not writable, or while another process writes it. The lock ends with
    the process, however it ends.
    """

    def __init__(self, directory: Path, manifest: Manifest, name: str) -> None:
        self.path = directory / name
        self._new: list[Path] = []
        """Files and folders that this process has made, the outermost folder last."""
        try:
            self._new = make_folder(directory)
            if not (directory / "run.json").exists():
                write_atomically(directory / "run.json", msgspec.json.format(_encoded(manifest)))
                self._new.insert(0, directory / "run.json")
            self._file = self._locked(new=not self.path.exists())
        except BlockingIOError as error:
            raise UsageError(
                f"another process is writing the run directory {str(directory)!r}",
                "wait for its end, or choose another --output",
            ) from error
        except OSError as error:
            remove_new(self._new)
            raise UsageError(
                f"cannot write the run directory {str(directory)!r}: {error.strerror}",
                "choose another place with --output",
            ) from error

    def _locked(self, *, new: bool) -> BufferedRandom:
        """Open the file, and end a torn line: a killed run may end inside one."""
        file = self.path.open("ab+")
        try:
            refuse_kind(self.path, os.fstat(file.fileno()).st_mode)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
        except OSError:
            file.close()
            raise
        if new:
            self._new.insert(0, self.path)
        return file

    @property
    def is_empty(self) -> bool:
        """No run has written a line yet."""
        return self._file.seek(0, os.SEEK_END) == 0

    def append(self, line: bytes) -> None:
        """Write one line and flush it to the operating system."""
        try:
            self._file.write(redacted_bytes(line))
            self._file.flush()
        except OSError as error:
            raise UsageError(
                f"cannot append to {str(self.path)!r}: {error.strerror}",
                "free some space or choose another place with --output, then repeat the command",
            ) from error

    def close(self) -> None:
        """Close the file; the run can still be resumed."""
        self._file.close()

    def remove(self) -> None:
        """Close and remove it, with all else that its making has made."""
        self.close()
        remove_new(self._new)


class RunWriter:
    """Writes a run directory, or resumes it by appending. Raises UsageError if not writable."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory = directory
        self._events = LineFile(directory, manifest, EVENTS)
        self._start = time.monotonic() - _seconds_so_far(directory)

    @property
    def seconds(self) -> float:
        """Seconds of work since the run began, those of its earlier parts included."""
        return time.monotonic() - self._start

    def write(self, event: AnyEvent) -> None:
        """Append one event and flush it to the operating system."""
        stamped = msgspec.structs.replace(event, at=round(self.seconds, 3))
        self._events.append(_line(stamped))

    def write_file(self, name: str, data: bytes) -> Path:
        """Store a file next to the events; returns its path."""
        return store(self.directory / name, data)

    def close(self) -> None:
        """Close the event file; the run can still be resumed."""
        self._events.close()

    def discard_if_empty(self) -> bool:
        """Remove a run without events, as far as the file system allows; whether there are none."""
        empty = self._events.is_empty
        if empty:
            self._events.remove()
        return empty


def make_folder(folder: Path) -> list[Path]:
    """Make a folder and those above it, all or none; returns the new ones, the outermost last."""
    new: list[Path] = []
    if len(folder.parts) > MOST_LEVELS:  # no tool could remove them again
        raise OSError(errno.ENAMETOOLONG, f"it is {len(folder.parts):,} folders deep", str(folder))
    try:
        for each in (*reversed(folder.parents), folder):
            if not each.exists():
                each.mkdir(exist_ok=True)
                new.insert(0, each)
    except OSError:
        remove_new(new)
        raise
    folder.mkdir(exist_ok=True)  # refuses a file
    return new


def remove_new(paths: Iterable[Path]) -> None:
    """Remove files, and folders that are empty: a refused command leaves all as it was."""
    with suppress(OSError):
        for each in paths:
            if each.is_dir():
                each.rmdir()
            else:
                each.unlink()


def refuse_record(folder: Path) -> None:
    """Raise UsageError if a folder holds the record of a run, in which nothing else is written."""
    if os.path.lexists(folder / "run.json"):
        raise UsageError(
            f"{str(folder)!r} holds the record of a run", "choose another place with --output"
        )


def write_atomically(path: Path, data: bytes) -> None:
    """Write a whole file, without secrets, or nothing: a full disk leaves no part of it."""
    if not path.name:  # the root of the file system
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not (path.is_file() or path.is_dir()):  # root would replace /dev/null
        raise FileExistsError(errno.EEXIST, "it is no regular file", str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(redacted_bytes(data))
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def store(path: Path, data: bytes, *, hint: str = "choose another place with --output") -> Path:
    """Write a file and the directories above it. Raises UsageError if that cannot be done."""
    new: list[Path] = []
    try:
        new = make_folder(path.parent)
        write_atomically(path, data)
    except OSError as error:
        remove_new(new)
        raise UsageError(f"cannot write {str(path)!r}: {error.strerror}", hint) from error
    return path


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run read back from its directory."""

    directory: Path
    manifest: Manifest
    events: list[AnyEvent]
    torn: int = 0
    """Lines that could not be read: the one being written when the run was killed."""

    @property
    def ended(self) -> Ended | None:
        """The last closing event; None for a run that was killed."""
        return next((e for e in reversed(self.events) if isinstance(e, Ended)), None)


def read_run(directory: Path) -> Run:
    """Read a run directory. Raises UsageError if it is not one, or an evaluation of 0.14."""
    manifest = read_manifest(directory)
    if manifest.verb == "eval" and not (directory / EVENTS).exists():
        raise UsageError(
            f"{str(directory)!r} holds an evaluation of version 0.14 or older, without {EVENTS}",
            "run it again, or read it with the kvproof that wrote it",
        )
    events, torn = _read_events(directory)
    return Run(directory=directory, manifest=manifest, events=continuous(events), torn=torn)


class _Decoder:
    """Decodes events; failures beyond the most that are read are counted alone."""

    failures = 0

    def decode(self, line: bytes) -> AnyEvent | None:
        if self.failures >= MOST_FAILURES and line.startswith(_FAILURE):
            self.failures += 1
            return None
        event = _decode(line)
        self.failures += isinstance(event, Failure)
        many = isinstance(event, Failure) and self.failures > MOST_FAILURES
        return None if many else event


def _read_events(directory: Path) -> tuple[list[AnyEvent], int]:
    """Return the events, with a note of the failures that are left out, and the torn lines."""
    decoder = _Decoder()
    found, torn = read_lines(directory / EVENTS, decoder.decode)
    events = [event for event in found if event is not None]
    if (seen := decoder.failures) > MOST_FAILURES:
        reason = f"{seen - MOST_FAILURES:,} of {seen:,} failures are left out"
        events.append(Skipped(part="failures", reason=reason, at=events[-1].at))
    return events, torn


def _seconds_so_far(directory: Path) -> float:
    events, _ = _read_events(directory)
    return continuous(events)[-1].at if events else 0.0


def read_manifest(directory: Path) -> Manifest:
    """Read `run.json` of a run directory. Raises UsageError if it is not one."""
    try:
        text = read_bounded(directory / "run.json", what="the manifest", hint=GIVE)
        _check_schema(directory, msgspec.json.decode(text, type=_Schema))
        manifest = msgspec.json.decode(text, type=Manifest)
    except OSError as error:
        raise UsageError(
            f"{str(directory)!r} is not a run directory: {error.strerror} (run.json)",
            GIVE,
        ) from error
    except UNREADABLE as error:
        raise UsageError(
            f"{str(directory / 'run.json')!r} is not a run manifest: {error}",
            GIVE,
        ) from error
    return _with_zone(directory, manifest)


def _with_zone(directory: Path, manifest: Manifest) -> Manifest:
    """Time without a zone is UTC: runs are put in order by when they began."""
    try:
        began = datetime.fromisoformat(manifest.started)
    except ValueError as error:
        raise UsageError(
            f"{str(directory / 'run.json')!r} is not a run manifest: started is "
            f"{manifest.started!r}, no time",
            "for example 2026-11-20T10:00:00+00:00",
        ) from error
    if began.tzinfo is not None:
        return manifest
    return msgspec.structs.replace(manifest, started=began.replace(tzinfo=timezone.utc).isoformat())


class _Schema(msgspec.Struct, frozen=True):
    schema: int = SCHEMA_VERSION


def _check_schema(directory: Path, found: _Schema) -> None:
    """Refuse a newer manifest first: it may have no known form."""
    if found.schema > SCHEMA_VERSION:
        raise UsageError(
            f"run {str(directory)!r} has schema {found.schema}, newer than {SCHEMA_VERSION}",
            "install a newer kvproof",
        )


def read_lines(path: Path, decode: Callable[[bytes], T]) -> tuple[list[T], int]:
    """Return the records of a file line by line, none if there is no file, and the torn lines."""
    records, torn = list[T](), 0
    for line in _lines(path):
        try:
            records.append(decode(line))
        except UNREADABLE:
            torn += 1
    return records, torn


def _lines(path: Path) -> Iterator[bytes]:
    try:
        data = read_bounded(path, what="the records", hint=GIVE)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
    yield from (line for line in data.split(b"\n") if line.strip())
