"""Objects of a large JSON array or of JSON Lines, with the memory of one object."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

_CHUNK = 1 << 20

_LARGEST = 1 << 30
"""Bytes after which an object without an end counts as a broken file."""

_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""Up to the closing quote, or to a backslash whose second half is not read yet."""

_MARK = codecs.BOM_UTF8

_STRUCTURE = re.compile(rb'["{}\[\]]')
_SPACE = re.compile(rb"[ \t\r\n]*+")


class Piece(NamedTuple):
    """The bytes of one object, its number, and where they are in the file."""

    number: int
    offset: int
    data: bytes


class BrokenStream(ValueError):
    """The file is neither an array of objects nor JSON Lines; `offset` is the place."""

    def __init__(self, message: str, *, index: int, offset: int) -> None:
        super().__init__(message)
        self.index, self.offset = index, offset


def objects(read: Callable[[int], bytes]) -> Iterator[Piece]:
    """Yield every object of a JSON array or of JSON Lines. Raises BrokenStream.

    `read` returns at most the given number of bytes, and none at the end. Objects are not decoded.
    """
    yield from _Cutter(read).pieces()


class _Cutter:
    """Bytes not yet yielded; `buffer` begins at `start` of the file."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self.read = read
        self.buffer = bytearray()
        self.start = self.position = self.index = 0

    def pieces(self) -> Iterator[Piece]:
        self.skip_mark()
        array = self.next_byte() == b"["
        if array:
            self.position += 1
        while self.more(array=array):
            begin = self.position
            self.find_end()
            data = bytes(self.buffer[begin : self.position])
            yield Piece(self.index, self.start + begin, data)
            self.index += 1
            self.forget()

    def skip_mark(self) -> None:
        """A byte order mark, as editors and PowerShell write it, is no content."""
        while len(self.buffer) < len(_MARK) and self.fill():
            pass
        if self.buffer.startswith(_MARK):
            self.position = len(_MARK)

    def more(self, *, array: bool) -> bool:
        """Whether an object begins here, after the comma that an array needs."""
        byte = self.next_byte()
        if array and byte == b"]":
            self.position += 1
            if self.next_byte():
                raise self.broken("there is something behind the end of the array")
            return False
        if array and self.index:
            if byte != b",":
                raise self.broken("a comma or the end of the array is missing")
            self.position += 1
            byte = self.next_byte()
        if not byte and not array:
            return False
        if byte != b"{":
            raise self.broken("an object was expected" if byte else "the file ends too early")
        return True

    def next_byte(self) -> bytes:
        """The next byte except white space; empty at the end of the file."""
        while True:
            found = _SPACE.match(self.buffer, self.position)
            assert found is not None  # it matches nothing, too
            self.position = found.end()
            if self.position < len(self.buffer) or not self.fill():
                return bytes(self.buffer[self.position : self.position + 1])

    def find_end(self) -> None:
        """Move to the end of the object that begins here."""
        depth, first = 0, self.position
        while True:
            found = _STRUCTURE.search(self.buffer, self.position)
            if found is None:
                self.position = len(self.buffer)
                self.need(first)
                continue
            self.position = found.end()
            if found[0] == b'"':
                self.skip_string(first)
            elif found[0] in b"{[":
                depth += 1
            else:
                depth -= 1
                if depth == 0:
                    return

    def skip_string(self, first: int) -> None:
        while True:
            found = _IN_STRING.match(self.buffer, self.position)
            assert found is not None  # it matches nothing, too
            self.position = found.end()
            if self.buffer[self.position : self.position + 1] == b'"':
                self.position += 1
                return
            self.need(first)

    def need(self, first: int) -> None:
        if len(self.buffer) - first > _LARGEST:
            raise self.broken(f"an object has no end within {_LARGEST:,} bytes")
        if not self.fill():
            raise self.broken("the file ends inside an object")

    def fill(self) -> bool:
        chunk = self.read(_CHUNK)
        self.buffer += chunk
        return bool(chunk)

    def forget(self) -> None:
        """Free the memory of yielded objects."""
        del self.buffer[: self.position]
        self.start += self.position
        self.position = 0

    def broken(self, message: str) -> BrokenStream:
        return BrokenStream(message, index=self.index, offset=self.start + self.position)
