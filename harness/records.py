"""Run records: `run.json` and the append-only `events.jsonl` of one run directory.

Everything a report shows comes from these two files. The writer flushes each event as one line,
so a killed run loses at most the event being written; the reader skips a torn last line and
nothing else. Unknown fields are ignored, so that newer code reads older runs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from kvproof.harness.errors import Exit, FailureKind, UsageError

SCHEMA_VERSION = 1

Verdict: TypeAlias = Literal["pass", "inconclusive", "fail", "unsupported", "expected_failure"]
RunVerdict: TypeAlias = Literal[
    "pass", "fail", "inconclusive", "regression", "harness", "usage", "interrupted"
]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`run.json`: what was asked for and where it ran."""

    schema: int = SCHEMA_VERSION
    id: str
    verb: str
    command: list[str]
    started: str
    """ISO 8601, UTC."""
    config: dict[str, Any]
    """The resolved configuration."""
    seed: int | None = None
    versions: dict[str, str]
    hardware: dict[str, str]
    commit: str | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of all events; `at` is seconds since the run started."""

    at: float = 0.0


class TargetStarted(Event, tag="target_started", frozen=True, kw_only=True):
    """A target answered its first call."""

    target: str
    engine: str
    version: str
    profile: dict[str, Any]
    isolation: Literal["in_process", "worker"]
    python: str = ""


class PropertyVerdict(Event, tag="property", frozen=True, kw_only=True):
    """The outcome of one property on one target."""

    target: str
    suite: str = "cache"
    property: str
    section: str
    """Letter of the rule section: B, K, H, ..."""
    rules: list[str]
    sentence: str
    verdict: Verdict
    reason: str = ""
    oracle: str = ""
    checks: int = 0
    """How often the property was evaluated."""
    situations: dict[str, int] = {}
    """Situations the property needs -> how often they occurred."""
    fingerprint: str = ""
    """Of the failure, if any."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a shrunk history."""

    op: str
    arguments: str
    answer: str
    note: str = ""
    """What was expected, on the step that failed."""


class BlockView(msgspec.Struct, frozen=True, kw_only=True):
    """One block at the moment of the failure."""

    block: int
    owners: list[str]
    writer: str
    """Request and positions that wrote it last, in words; empty if never written."""
    state: Literal["null", "free", "cached", "held"]
    suspect: bool = False


class Failure(Event, tag="failure", frozen=True, kw_only=True):
    """A property failed; the history is already minimal."""

    target: str
    property: str
    rules: list[str]
    oracle: str
    sentence: str
    """What went wrong, in the words of the field."""
    detail: str = ""
    """The slot and both fingerprints spelled out."""
    fingerprint: str
    op_log: str
    """Path relative to the run directory."""
    script: str
    """Source of the plain reproducer."""
    script_path: str
    history: list[Step]
    blocks: list[BlockView] = []
    tables: dict[str, list[int]] = {}
    """Request -> its block table at that moment."""
    seed: int | None = None
    related: list[str] = []


class TargetFailed(Event, tag="target_failed", frozen=True, kw_only=True):
    """The target itself died, hung or talked nonsense: a verdict about the target."""

    target: str
    kind: FailureKind
    message: str
    log: str = ""
    """Tail of the worker's log."""
    history: list[Step] = []


class Exercised(Event, tag="exercised", frozen=True, kw_only=True):
    """What a suite did to a target."""

    target: str
    suite: str
    test_cases: int
    operations: dict[str, int]
    situations: dict[str, int]
    hit_blocks: dict[str, int] = {}
    """Histogram of hit lengths in blocks: bucket label -> admissions."""
    seconds: float
    missing: list[str] = []
    """Required situations that never occurred."""


class BenchSample(Event, tag="bench_sample", frozen=True, kw_only=True):
    """One repetition of one target on one workload."""

    target: str
    workload: str
    block_size: int
    num_blocks: int
    case: str
    """`no_eviction`, `eviction`, `lists`, ..."""
    repetition: int
    requests: int
    tokens: int
    hit_tokens: int
    cpu_seconds: float
    wall_seconds: float
    p50_us: float
    p99_us: float
    harness_share: float
    """Share of the CPU seconds that is the harness's own loop, measured with an empty cycle."""
    bytes_per_block: float | None = None
    cached_blocks: int | None = None


class BenchSummary(Event, tag="bench_summary", frozen=True, kw_only=True):
    """Medians over the repetitions of one target and case, and the ratio to the named peer."""

    target: str
    workload: str
    block_size: int
    num_blocks: int
    case: str
    repetitions: int
    tokens_per_second: float
    low: float
    """10th percentile of tokens per second."""
    high: float
    p50_us: float
    p99_us: float
    hit_rate: float
    harness_share: float
    bytes_per_block: float | None = None
    index_bytes_per_block: float | None = None
    """`bytes_per_block` less the token ids themselves (4 bytes each)."""
    peer: str = ""
    ratio: float | None = None
    """tokens_per_second over the peer's, median of the paired repetitions."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    note: str = ""
    """What the case leaves out, and why."""


class Optimum(Event, tag="optimum", frozen=True, kw_only=True):
    """Hit rate in blocks that any cache of `capacity` blocks could reach on the workload."""

    workload: str
    block_size: int
    capacity: int | None
    """Blocks; None: infinite."""
    references: int
    infinite: float
    lru: float | None = None
    belady: float | None = None
    infinite_tokens: float | None = None
    lru_tokens: float | None = None
    belady_tokens: float | None = None
    rule: Literal["engine_blocks", "hash_blocks"] = "engine_blocks"
    """What counts as a block and as a hit: see `harness.optimum`."""
    lru_root_first_tokens: float | None = None
    """LRU that touches the blocks of a prompt from the first to the last; `hash_blocks` only."""


class GrowthPoint(Event, tag="growth", frozen=True, kw_only=True):
    """Cost of one cycle at a given number of cached blocks."""

    target: str
    block_size: int
    cached_blocks: int
    nanoseconds_per_token: float
    low: float
    high: float


class Checked(Event, tag="checked", frozen=True, kw_only=True):
    """The workload ran once more under the shadow memory."""

    target: str
    workload: str
    block_size: int
    num_blocks: int
    requests: int
    tokens: int
    slots_compared: int
    verdict: Literal["pass", "fail"]
    message: str = ""


class Threshold(Event, tag="threshold", frozen=True, kw_only=True):
    """One line of the gate's thresholds."""

    name: str
    measured: float | None
    limit: float
    baseline: float | None = None
    verdict: Literal["pass", "fail", "inconclusive"]
    reason: str = ""


class Replayed(Event, tag="replayed", frozen=True, kw_only=True):
    """One op log of the corpus or of a recorded failure was run again."""

    target: str
    path: str
    outcome: Literal["FIXED", "FAILED", "ERROR"]
    message: str = ""
    expected: str = ""


class Skipped(Event, tag="skipped", frozen=True, kw_only=True):
    """A part did not run; `command` installs what it needs."""

    part: str
    reason: str
    command: str = ""


class HarnessFault(Event, tag="harness_fault", frozen=True, kw_only=True):
    """kvproof itself failed; never a verdict about the target."""

    where: str
    message: str
    traceback: str = ""


class Ended(Event, tag="ended", frozen=True, kw_only=True):
    """The run closed. A run without this event was killed."""

    verdict: RunVerdict
    exit_code: int
    sentence: str
    seconds: float


AnyEvent: TypeAlias = (
    TargetStarted
    | PropertyVerdict
    | Failure
    | TargetFailed
    | Exercised
    | BenchSample
    | BenchSummary
    | Optimum
    | GrowthPoint
    | Checked
    | Threshold
    | Replayed
    | Skipped
    | HarnessFault
    | Ended
)

_VERDICT_CODES = {
    "fail": Exit.FAILURE,
    "FAILED": Exit.FAILURE,
    "inconclusive": Exit.INCONCLUSIVE,
    "ERROR": Exit.HARNESS,
}


def exit_code(event: AnyEvent) -> Exit:
    """Return the code that an event calls for; a run ends with the worst of them."""
    if isinstance(event, TargetFailed):
        return Exit.FAILURE
    if isinstance(event, HarnessFault):
        return Exit.HARNESS
    if isinstance(event, Threshold) and event.verdict == "fail":
        return Exit.REGRESSION
    told = event.outcome if isinstance(event, Replayed) else getattr(event, "verdict", "")
    return Exit.PASS if isinstance(event, Ended) else _VERDICT_CODES.get(told, Exit.PASS)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AnyEvent).decode

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)
"""What decoding raises for bytes that are not JSON, not the record, or not even text."""


def _line(event: AnyEvent) -> bytes:
    try:
        return _encode(event) + b"\n"
    except UnicodeEncodeError:  # a target's message may hold what is no text, say a file name
        text = json.dumps(msgspec.to_builtins(event), ensure_ascii=False)
        return text.encode(errors="replace") + b"\n"


class RunWriter:
    """Writes one run directory. Opening an existing one appends to its events (resume).

    Raises UsageError if the directory cannot be written.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory = directory
        self._start = time.monotonic()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if not (directory / "run.json").exists():
                write_atomically(directory / "run.json", msgspec.json.format(_encode(manifest)))
            self._file = (directory / "events.jsonl").open("ab+")
            self._end_torn_line()
        except OSError as error:
            raise UsageError(
                f"cannot write the run directory {str(directory)!r}: {error.strerror}",
                "choose another place with --output",
            ) from error

    def _end_torn_line(self) -> None:
        """A killed run may end inside a line; the next event must not be glued to it."""
        if self._file.tell() == 0:
            return
        self._file.seek(-1, os.SEEK_END)
        if self._file.read(1) != b"\n":
            self._file.write(b"\n")

    def write(self, event: AnyEvent) -> None:
        """Append one event and flush it to the operating system."""
        stamped = msgspec.structs.replace(event, at=round(time.monotonic() - self._start, 3))
        try:
            self._file.write(_line(stamped))
            self._file.flush()
        except OSError as error:
            raise UsageError(
                f"cannot append to {str(self.directory / 'events.jsonl')!r}: {error.strerror}",
                "free some space or choose another place with --output, then repeat the command",
            ) from error

    def write_file(self, name: str, data: bytes) -> Path:
        """Store a file beside the events; returns its path."""
        return store(self.directory / name, data)

    def close(self) -> None:
        """Close the event file; the run can still be resumed."""
        self._file.close()

    def discard_if_empty(self) -> bool:
        """Take a run without events back, as far as the file system lets it; tell if it was."""
        empty = self._file.seek(0, os.SEEK_END) == 0
        if empty:
            self.close()
            with suppress(OSError):
                (self.directory / "events.jsonl").unlink()
                (self.directory / "run.json").unlink()
                self.directory.rmdir()
        return empty


def write_atomically(path: Path, data: bytes) -> None:
    """Write a whole file or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)


def store(path: Path, data: bytes) -> Path:
    """Write a file and the directories above it. Raises UsageError if that cannot be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        raise UsageError(
            f"cannot write {str(path)!r}: {error.strerror}", "choose another place with --output"
        ) from error
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
    """Read a run directory. Raises UsageError if it is not one."""
    try:
        text = (directory / "run.json").read_bytes()
        _check_schema(directory, msgspec.json.decode(text, type=_Schema))
        manifest = msgspec.json.decode(text, type=Manifest)
    except OSError as error:
        raise UsageError(
            f"{str(directory)!r} is not a run directory: {error.strerror} (run.json)",
            "give the directory that a run printed, for example runs/latest",
        ) from error
    except UNREADABLE as error:
        raise UsageError(
            f"{str(directory / 'run.json')!r} is not a run manifest: {error}",
            "give the directory that a run printed, for example runs/latest",
        ) from error
    events, torn = [], 0
    for line in _lines(directory / "events.jsonl"):
        try:
            events.append(_decode(line))
        except UNREADABLE:
            torn += 1
    return Run(directory=directory, manifest=manifest, events=events, torn=torn)


class _Schema(msgspec.Struct, frozen=True):
    """What a manifest of any version has."""

    schema: int = SCHEMA_VERSION


def _check_schema(directory: Path, found: _Schema) -> None:
    """Say so first if a manifest is newer: it may look like nothing known here."""
    if found.schema > SCHEMA_VERSION:
        raise UsageError(
            f"run {str(directory)!r} has schema {found.schema}, newer than {SCHEMA_VERSION}",
            "install a newer kvproof",
        )


def _lines(path: Path) -> Iterator[bytes]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
    yield from (line for line in data.split(b"\n") if line.strip())
