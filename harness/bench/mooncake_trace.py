"""Reads block-hash request traces (the Mooncake format) and checks them line by line.

One JSON object per line in arrival order: `timestamp`, `input_length`, `output_length` and
`hash_ids`, one id per block of the prompt, where an id stands for the block and everything
before it. Other fields are ignored, blank lines too.

Needs only the standard library of Python 3.10: traces are read inside the workers.
"""

from __future__ import annotations

import gzip
import json
import zlib
from array import array
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from kvproof.harness import strict_json
from kvproof.harness.errors import UsageError
from kvproof.harness.opening import opened

DEFAULT_BLOCK = 512
"""Tokens per id in the Mooncake traces; other traces use 16 and others."""

_SAMPLE = 100
_CANDIDATES = (DEFAULT_BLOCK, *(1 << n for n in range(15) if 1 << n != DEFAULT_BLOCK))
_ROOT = -1
_LIMIT = 1 << 63
_GZIP = b"\x1f\x8b"


class Trace(NamedTuple):
    """The rows of a trace; ids of row i are [bounds[i], bounds[i + 1])."""

    block: int
    """Tokens per id."""
    bounds: array[int]
    ids: array[int]
    lengths: array[int]
    """Prompt tokens per row."""
    outputs: array[int]
    """Generated tokens per row."""
    times: array[float]
    """Milliseconds from the start of the trace per row."""
    notes: tuple[str, ...]
    """The skipped lines."""


class _Row(NamedTuple):
    timestamp: float
    length: int
    output: int
    ids: list[int]


class _Bad(Exception):
    """Why a line is not usable, and how to go on."""


def read_trace(path: Path, *, block: int = 0, skip_bad_lines: bool = False) -> Trace:
    """Read and check a trace.

    `block`: tokens per id; 0 takes 512 if it fits the lines, else the power of two that fits.
    Raises UsageError with file, line, value and a way on; `skip_bad_lines` skips such lines and
    lists them in the notes. An unreadable, truncated or empty file is always an error.
    """
    reader = _Reader(path, block or _infer_block(path))
    for number, line in _lines(path):
        try:
            reader.add(number, line)
        except _Bad as error:
            if not skip_bad_lines:
                raise _usage(path, number, str(error)) from None
            reader.skipped.append((number, str(error)))
    return reader.trace()


class _Reader:
    def __init__(self, path: Path, block: int) -> None:
        self.path = path
        self.block = block
        self.bounds = array("q", [0])
        self.ids = array("q")
        self.lengths, self.outputs, self.times = array("q"), array("q"), array("d")
        self.numbers = array("q")
        self.before: dict[int, int] = {}
        self.clock = 0.0
        self.skipped: list[tuple[int, str]] = []

    def add(self, number: int, line: bytes) -> None:
        row = _parse(line)
        self._check_count(row)
        self._check_order(row)
        pairs = list(zip(row.ids, [_ROOT, *row.ids[:-1]], strict=True))
        self._check_paths(row, pairs)
        self.before.update(pairs)
        self.clock = row.timestamp
        self.ids.extend(row.ids)
        self.bounds.append(len(self.ids))
        self.lengths.append(row.length)
        self.outputs.append(row.output)
        self.times.append(row.timestamp)
        self.numbers.append(number)

    def _check_count(self, row: _Row) -> None:
        needed = -(-row.length // self.block)
        if len(row.ids) != needed:
            raise _Bad(
                f"{len(row.ids)} hash_ids for input_length {row.length}; "
                f"blocks of {self.block} tokens need {needed}"
            )

    def _check_order(self, row: _Row) -> None:
        """A decreasing timestamp means that the order of arrival, and so every hit, is wrong."""
        if row.timestamp < self.clock:
            raise _Bad(
                f"timestamp {row.timestamp:g} is before {self.clock:g} of the line before; "
                "rows have to be in order of arrival"
            )

    def _check_paths(self, row: _Row, pairs: list[tuple[int, int]]) -> None:
        """One predecessor per id; by induction from the root also one depth per id."""
        if len(set(row.ids)) != len(row.ids):
            twice = next(i for n, i in enumerate(row.ids) if i in row.ids[:n])
            raise _Bad(f"id {twice} occurs twice in hash_ids")
        known = self.before
        for depth, (identity, before) in enumerate(pairs):
            if known.get(identity, before) != before:
                raise _Bad(self._contradiction(identity, before, depth))

    def _contradiction(self, identity: int, before: int, depth: int) -> str:
        position = self.ids.index(identity)
        row = next(n for n in range(len(self.numbers)) if self.bounds[n + 1] > position)
        first = self.numbers[row], position - self.bounds[row], self.before[identity]
        return (
            f"id {identity} stands {_place(depth, before)} here, but "
            f"{_place(first[1], first[2])} in line {first[0]}; "
            "an id stands for its block and everything before it"
        )

    def trace(self) -> Trace:
        if not self.numbers:
            raise UsageError(
                f"{str(self.path)!r} has no usable request ({len(self.skipped)} lines skipped)"
                if self.skipped
                else f"{str(self.path)!r} is empty: a trace has one JSON object per line",
                "download or copy the trace again",
            )
        notes: tuple[str, ...] = ()
        if self.skipped:
            number, why = self.skipped[0]
            total = len(self.skipped) + len(self.numbers)
            notes = (
                f"{len(self.skipped):,} of {total:,} lines skipped, first line {number}: {why}",
            )
        columns = (self.bounds, self.ids, self.lengths, self.outputs, self.times)
        return Trace(self.block, *columns, notes)


def _place(depth: int, before: int) -> str:
    return "first" if before == _ROOT else f"after id {before} at depth {depth}"


def _parse(line: bytes) -> _Row:
    try:
        row = strict_json.loads(line)
    except strict_json.NotStrict as error:
        raise _Bad(str(error)) from None
    if not isinstance(row, dict):
        raise _Bad(f"{_shown(row)} instead of an object")
    output = _integer(row, "output_length", 0)
    return _Row(_timestamp(row), _integer(row, "input_length", 1), output, _ids(row))


def _field(row: dict[str, object], name: str) -> object:
    if name not in row:
        raise _Bad(f"field {name!r} is missing")
    return row[name]


def _timestamp(row: dict[str, object]) -> float:
    value = _field(row, "timestamp")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _LIMIT:
        raise _Bad(f"timestamp is {_shown(value)}, not a time since the start of the trace")
    return float(value)


def _integer(row: dict[str, object], name: str, least: int) -> int:
    value = _field(row, name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < _LIMIT:
        raise _Bad(f"{name} is {_shown(value)}, not a number of tokens from {least}")
    return value


def _ids(row: dict[str, object]) -> list[int]:
    ids = _field(row, "hash_ids")
    if not isinstance(ids, list):
        raise _Bad(f"hash_ids is {_shown(ids)}, not a list")
    for n, value in enumerate(ids):
        if type(value) is not int or not 0 <= value < _LIMIT:
            raise _Bad(f"hash_ids[{n}] is {_shown(value)}, not an integer from 0 below 2**63")
    return ids


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _infer_block(path: Path) -> int:
    """512 if it fits most of the first lines that can be read, else the size that does."""
    rows = []
    for _, line in islice(_lines(path), _SAMPLE):
        with suppress(_Bad):
            rows.append(_parse(line))
    fits = {b: sum(-(-row.length // b) == len(row.ids) for row in rows) for b in _CANDIDATES}
    best = max(fits, key=fits.__getitem__)  # the first of equals, so 512 where it fits
    return best if 2 * fits[best] > len(rows) else DEFAULT_BLOCK


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with opened(path) as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            with gzip.open(raw) if packed else raw as file:
                for number, line in enumerate(strict_json.lines(file), 1):
                    if row := line.strip():
                        yield number, row
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(
            f"{str(path)!r} is truncated or damaged after line {number}: {error}",
            "download or copy the trace again, and compare its checksum",
        ) from None
    except strict_json.NotStrict as error:
        raise UsageError(f"{path}:{number + 1}: the line is {error}", "is it a trace?") from None
    except OSError as error:
        raise UsageError(
            f"cannot read the trace {str(path)!r}: {error.strerror}",
            "give the path of a .jsonl or .jsonl.gz file",
        ) from None


def _usage(path: Path, number: int, why: str) -> UsageError:
    return UsageError(
        f"{path}:{number}: {why}",
        f"correct the line, or leave such lines out with '{path.name}:skip-bad-lines=1'",
    )
