"""Reads recordings: which there are in a folder, and the lines of one, in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

from kvproof.harness import strict_json
from kvproof.harness.contract.target import Group, Namespace, Request, Span, TargetConfig
from kvproof.harness.errors import UsageError
from kvproof.harness.opening import opened
from kvproof.harness.recorder.codec import pack, unpack
from kvproof.harness.recorder.log_writer import STEPPED
from kvproof.harness.recorder.rotation import SUFFIX
from kvproof.harness.records.run_directory import UNREADABLE

_NAME = re.compile(rf"(?P<stem>.+)\.(?P<number>\d{{5,}}){re.escape(SUFFIX)}")

VERBS = ("admit", "extend", "table", "finish", "cancel", "preempt", "reset", "evict", "cap",
         "carry", "stopped", "steps")  # fmt: skip

BEGINS, ENDS = ("admit", "carry"), ("finish", "cancel", "preempt")
"""Operations that begin and end the life of an admission."""
_NUMBERED = (*BEGINS, "extend", "table", *ENDS)

MOST_SLOTS = 1 << 29
"""Tokens of a pool that is judged: more than a large device has for a toy of a model."""

_Int: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
"""64-bit integers, the largest that arrays accept, for any answer of an engine."""


class Header(msgspec.Struct, frozen=True):
    """The first line of each file."""

    kvproof: str
    format: int
    engine: str
    version: str
    num_blocks: int
    block_size: int
    segment: int
    unix: float
    """When it was begun."""
    process: int = 0
    prefix_caching: bool = True
    maximal: bool = True
    hashed: bool = False
    capped: bool = False
    """Hits were cut short for a reason of the engine's own before this file began."""
    loop: dict[str, int | str | bool] = {}
    """Settings of the engine's loop, where the recorder knew them."""
    groups: tuple[Group, ...] = ()
    """Empty: one group of full attention."""
    overlaps: bool = False
    """Whether steps overlap: windows then give blocks back later."""
    unjudged: tuple[str, ...] = ()
    """Further limits of the judge in this cache, one line each."""

    @property
    def config(self) -> TargetConfig:
        """The pool that the engine had."""
        return TargetConfig(
            self.num_blocks,
            self.block_size,
            prefix_caching=self.prefix_caching,
            groups=self.groups,
        )

    @property
    def target(self) -> str:
        """The engine as users write it."""
        return f"{self.engine}=={self.version}"


class Line(msgspec.Struct, frozen=True):
    """Anything that happened."""

    op: str
    t: _Int
    """Milliseconds since the recording began."""
    n: _Int = 0
    """Number of the admission."""
    name: str = ""
    """The request as the engine calls it."""
    tokens: str = "i"
    blocks: str | None = None
    groups: tuple[str, ...] = ()
    """Where there are several groups: the edit of each table, empty for none."""
    at: _Int = 0
    """Tokens that were computed before the tables changed."""
    hit: _Int = 0
    stop: _Int = 0
    loaded: _Int = 0
    adapter: str | None = None
    adapter_version: str | None = None
    salt: str | None = None
    spans: tuple[tuple[str, _Int, _Int, str], ...] = ()
    read: bool = True
    store: bool = True
    resumed: bool = False
    fenced: bool = False
    done: bool = True
    reason: str = ""
    rows: str = "i"
    """The requests of a step: number, stop, counts of tokens and blocks, then these, of each."""

    @property
    def request(self) -> Request:
        """The request of an admission, under a name that is an identifier."""
        space = Namespace(self.adapter, self.adapter_version, self.salt)
        return Request(
            f"r{self.n}",
            unpack(self.tokens),
            space,
            tuple(_apart(self.spans)),
            read=self.read,
            store=self.store,
            resumed=self.resumed,
        )


def _apart(spans: tuple[tuple[str, int, int, str], ...]) -> Iterator[Span]:
    """Media may lie inside one another, sound in its film: each ends where the next begins."""
    for (kind, start, length, content), following in zip_longest(spans, spans[1:]):
        end = following[1] if following else start + length
        if start < end:
            yield Span(kind, start, min(length, end - start), content)


class Place(NamedTuple):
    """Where a line stands."""

    path: Path
    number: int

    def __str__(self) -> str:
        return f"{self.path}:{self.number}"


class Recording(NamedTuple):
    """The files of one cache, oldest first, without a hole."""

    header: Header
    paths: tuple[Path, ...]
    dropped: int
    """Files that were there before the first of these."""

    @property
    def name(self) -> str:
        """The engine's process, and which of its caches."""
        return self.paths[0].name.rpartition(".")[0].rpartition(".")[0]

    def lines(self) -> Iterator[tuple[Place, Line]]:
        """Yield every line but headers. Raises UsageError where a file is damaged.

        The requests at the start of a file are left out if the previous file is present.
        """
        live: set[int] = set()
        for path in self.paths:
            header, rest = _file(path)
            if (header.format, header.config) != (self.header.format, self.header.config):
                raise UsageError(f"{str(path)!r} is of another cache than the files before it")
            for number, line in rest:
                if line.op != "carry" or path == self.paths[0]:
                    place = Place(path, number)
                    _follow(live, line, place)
                    yield place, line


def _follow(live: set[int], line: Line, place: Place) -> None:
    """Keep the numbers of the requests that there are. Raises UsageError for one astray."""
    if line.op not in _NUMBERED:
        return
    if line.op in BEGINS:
        if line.n in live:
            raise _astray(place, f"admits request {line.n}, which is there already")
        live.add(line.n)
    elif line.n not in live:
        raise _astray(place, f"is about request {line.n}, which no line before it admits")
    elif line.op in ENDS:
        live.remove(line.n)


def _astray(place: Place, what: str) -> UsageError:
    hint = "the files of a recording belong together, as they were written"
    return UsageError(f"{place} {what}", hint)


def is_recording(path: Path) -> bool:
    """Whether a path is a file of a recording, or a folder that has one."""
    if path.is_dir():
        return any(path.glob(f"*{SUFFIX}"))
    return path.name.endswith(SUFFIX)


def recordings(path: Path) -> list[Recording]:
    """Return the recordings of a folder, or the one that a file belongs to. Raises UsageError."""
    inside = path if path.is_dir() else path.parent
    found: dict[str, dict[int, Path]] = {}
    for each in sorted(inside.glob(f"*{SUFFIX}")):
        if (match := _NAME.fullmatch(each.name)) and int(match["number"]):
            found.setdefault(match["stem"], {})[int(match["number"])] = each
    if not path.is_dir():
        match = _NAME.fullmatch(path.name)
        found = {stem: files for stem, files in found.items() if match and stem == match["stem"]}
    if not found:
        raise UsageError(
            f"there is no recording at {str(path)!r}",
            f"name a folder or a file of kvproof record: NAME.00001{SUFFIX}",
        )
    return [_recording(files) for files in found.values()]


def _recording(files: dict[int, Path]) -> Recording:
    last = max(files)
    first = next(n for n in range(last, 0, -1) if n == 1 or n - 1 not in files)
    if first < last and next(_whole_lines(files[last]), None) is None:
        last -= 1  # killed as it began that file
    paths = tuple(files[number] for number in range(first, last + 1))
    header, _ = _file(paths[0])
    return Recording(header, paths, first - 1)


def _file(path: Path) -> tuple[Header, Iterator[tuple[int, Line]]]:
    lines = _whole_lines(path)
    first = next(lines, None)
    if first is None:
        raise UsageError(
            f"{str(path)!r} is no recording: it ends inside its first line",
            "the process was killed as it began; there is nothing in it",
        )
    return read_header(path, first), _decoded(path, lines)


def _whole_lines(path: Path) -> Iterator[bytes]:
    try:
        with opened(path) as file:
            yield from (text for text in strict_json.lines(file) if text.endswith(b"\n"))
    except strict_json.NotStrict as error:
        raise UsageError(f"{str(path)!r} has a line {error}", "it is no recording") from error
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error


def read_header(path: Path, text: bytes) -> Header:
    """Return the first line of a file. Raises UsageError for another one."""
    hint = f"recordings are made by kvproof record and end in {SUFFIX}"
    try:
        found: Any = msgspec.json.decode(text)
        if not isinstance(found, dict) or found.get("kvproof") != "recording":
            raise UsageError(f"{str(path)!r} is no recording: its first line says nothing of it",
                             hint)  # fmt: skip
        if not isinstance(found.get("format"), int) or found["format"] > STEPPED:
            raise UsageError(
                f"{str(path)!r} was written by a newer kvproof: format {found.get('format')!r}, "
                f"known are those up to {STEPPED}",
                "upgrade kvproof",
            )
        header = msgspec.convert(found, Header)
    except UNREADABLE as error:
        raise UsageError(f"{str(path)!r} is no recording: {error}", hint) from error
    blocks, size = header.num_blocks, header.block_size
    if size < 1 or blocks < 2 or blocks * size > MOST_SLOTS:
        raise UsageError(
            f"{str(path)!r} tells of {blocks} blocks of {size} tokens; judged are two blocks and "
            f"more, up to {MOST_SLOTS:,} tokens",
            hint,
        )
    return header


_decode = msgspec.json.Decoder(Line).decode


def read_line(text: bytes) -> Line:
    """Return a line; its packed numbers may be damaged. Raises one of UNREADABLE."""
    line = _decode(text)
    if line.op not in VERBS:
        raise msgspec.ValidationError(f"unknown operation {line.op!r}")
    if line.op in _NUMBERED and line.n < 1:
        raise msgspec.ValidationError(f"{line.op} of request {line.n}")
    return line


def apart(line: Line) -> Iterator[Line]:
    """Yield the line of each request of a step; any other line as it is. Raises ValueError."""
    if line.op != "steps":
        yield line
        return
    numbers, at = unpack(line.rows), 0
    while at < len(numbers):
        n, stop, tokens, blocks = numbers[at : at + 4]
        first, end = at + 4 + tokens, at + 4 + tokens + blocks
        if n < 1 or min(tokens, blocks) < 0 or end > len(numbers):
            raise ValueError(f"a step with a row of {tokens} tokens and {blocks} blocks")
        news = pack(numbers[at + 4 : first]), pack(numbers[first:end])
        yield Line("extend", line.t, n, tokens=news[0], blocks=news[1], stop=stop)
        at = end


def _decoded(path: Path, lines: Iterator[bytes]) -> Iterator[tuple[int, Line]]:
    for number, text in enumerate(lines, 2):
        try:
            line = read_line(text)
            unpack(line.tokens), unpack(line.blocks or "i")
            [unpack(each or "i") for each in line.groups]
            found = list(apart(line))
        except (*UNREADABLE, ValueError) as error:
            raise UsageError(
                f"{path}:{number} is damaged: {error}",
                "what comes before can be judged: copy the file up to there",
            ) from error
        for each in found:
            yield number, each
