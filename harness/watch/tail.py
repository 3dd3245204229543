"""The last seconds of one cache, in the recorder's format."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvproof.harness.recorder.codec import pack, unpack
from kvproof.harness.recorder.recording import BEGINS, ENDS, Line
from kvproof.harness.recorder.tables import Tables, edit, edited

_PIECES = 4
"""Files that the kept time is divided into."""


@dataclass
class _Held:
    """A request that holds blocks."""

    first: Line
    """Its admission."""
    tokens: array[int]
    table: list[int]
    tables: Tables
    """Those of several groups; `table` is of one."""
    stop: int


@dataclass
class _Piece:
    """A file of a recording, in memory."""

    number: int
    begun: int
    """Milliseconds since the recording began."""
    text: bytearray = field(default_factory=bytearray)


class Tail:
    """Keeps `seconds` of lines, less where they take more than `most` bytes."""

    def __init__(self, header: bytes, *, seconds: float, most: int) -> None:
        """`header`: the first line, whose number of the file is kept."""
        self._header: dict[str, Any] = msgspec.json.decode(header)
        self._period = round(seconds * 1000) // _PIECES
        self._most = most
        self._held: dict[int, _Held] = {}
        first = _Piece(self._header["segment"], self._header["t"], bytearray(header))
        self._pieces: deque[_Piece] = deque([first])

    def take(self, lines: Sequence[Line], text: bytes) -> None:
        """Keep the lines of a text. Raises ValueError and KeyError where one does not follow."""
        last = self._pieces[-1]
        now = lines[0].t if lines else last.begun
        if now - last.begun >= self._period or len(last.text) > self._most // _PIECES:
            self._turn(now)
        for line in lines:
            self._apply(line)
        self._pieces[-1].text += text

    def _turn(self, now: int) -> None:
        """Begin the next file, and drop those that are too old."""
        number = self._pieces[-1].number + 1
        header = {**self._header, "segment": number, "t": now}
        text = bytearray(msgspec.json.encode(header) + b"\n")
        for line in self.opening(now):
            text += msgspec.json.encode(line) + b"\n"
        self._pieces.append(_Piece(number, now, text))
        while len(self._pieces) > 1 and (len(self._pieces) > _PIECES + 1 or self.size > self._most):
            self._pieces.popleft()

    def _apply(self, line: Line) -> None:
        if line.op in BEGINS:
            table = list(unpack(line.blocks or "i"))
            tables = _edited(((),) * len(line.groups), line)
            self._held[line.n] = _Held(line, _array(line), table, tables, line.stop)
        elif line.op == "extend":
            held = self._held[line.n]
            held.tokens += _array(line)
            held.table += unpack(line.blocks or "i")
            held.tables = _edited(held.tables, line)
            held.stop = line.stop
        elif line.op == "table":
            blocks = unpack(line.blocks or "i")
            self._held[line.n].table[: len(blocks)] = blocks
        elif line.op in ENDS:
            del self._held[line.n]
        self._header["capped"] = self._header.get("capped", False) or line.op == "cap"

    @property
    def begun(self) -> int:
        """When its oldest file begins, in milliseconds."""
        return self._pieces[0].begun

    @property
    def size(self) -> int:
        """Bytes of the kept files."""
        return sum(len(piece.text) for piece in self._pieces)

    def opening(self, now: int) -> list[Line]:
        """Return the requests that hold blocks, as a recording begins with them."""
        return [
            msgspec.structs.replace(
                held.first, op="carry", t=now, tokens=pack(held.tokens), blocks=pack(held.table),
                groups=tuple(pack(edit((), table)) for table in held.tables),
                hit=0, loaded=0, stop=held.stop,
            )
            for held in self._held.values()
        ]  # fmt: skip

    def files(self) -> list[tuple[int, bytes]]:
        """Return (number, content) of each file, the oldest first."""
        return [(piece.number, bytes(piece.text)) for piece in self._pieces]


def _array(line: Line) -> array[int]:
    return array("q", unpack(line.tokens))


def _edited(tables: Tables, line: Line) -> Tables:
    """Return the tables of several groups after a line."""
    if not line.groups:
        return tables
    both = zip(tables, line.groups, strict=True)
    return tuple(edited(old, unpack(change)) if change else old for old, change in both)
