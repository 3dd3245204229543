"""Server-sent events, by section 9.2.6 of the HTML standard (interpreting an event stream)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\r|\n")
_MARK = b"\xef\xbb\xbf"


class ServerEvent(NamedTuple):
    """One event of a stream."""

    data: bytes
    """Its `data` lines, joined by line feeds."""
    name: str = "message"


class EventDecoder:
    """Decodes events from bytes in pieces of any size.

    Lines end in CR, LF or both. A line without a colon is a field without a value, and fields
    outside the standard are ignored. An event without its empty line is incomplete and dropped.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._name = ""
        self._started = self._after_return = False

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """Yield the events that end in `piece`."""
        for line in self._lines(piece):
            if line:
                self._field(line)
                continue
            data, name = self._data, self._name
            self._data, self._name = [], ""
            if data:
                yield ServerEvent(b"\n".join(data), name or "message")

    def _lines(self, piece: bytes) -> list[bytes]:
        if self._after_return:
            piece = piece.removeprefix(b"\n")
        held = self._rest + piece
        if not self._started:
            if _MARK.startswith(held):  # it may yet become the mark
                self._rest = held
                return []
            held, self._started = held.removeprefix(_MARK), True
        self._after_return = held.endswith(b"\r")
        *lines, self._rest = _LINE_END.split(held)
        return lines

    def _field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode(errors="replace")


def events(pieces: Iterable[bytes]) -> Iterator[ServerEvent]:
    """Yield the events of a stream of bytes."""
    decoder = EventDecoder()
    for piece in pieces:
        yield from decoder.feed(piece)
