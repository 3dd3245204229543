"""JSON of users: no key twice, no NaN, no infinity, no digits by the thousand, no endless line.

Python's own parser takes the last of two equal keys, and NaN. Needs only the standard library of
Python 3.10: traces are read inside the workers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

MOST_DIGITS = 40
LONGEST_LINE = 16 << 20
"""Bytes; a prompt of ten million tokens in blocks of 16 has a third of it."""


class NotStrict(ValueError):
    """A text is not JSON, or not in this strict sense; the message has the rule."""


def loads(data: bytes) -> Any:
    """Decode a document in UTF-8. Raises NotStrict."""
    try:
        return json.loads(
            data.decode(),
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_int=_integer,
            parse_float=_number,
        )
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise NotStrict(f"not UTF-8: byte {byte:#04x} at column {error.start + 1}") from None
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise NotStrict(f"not JSON: {error.msg} at {line}column {error.colno}") from None
    except RecursionError:
        raise NotStrict("not JSON of a record: it is nested too deep") from None


class Lines(Protocol):
    """An open file, packed or not."""

    def readline(self, size: int, /) -> bytes:
        """Return the next line, or `size` bytes of it."""


def lines(file: Lines) -> Iterator[bytes]:
    """Yield the lines of a file. Raises NotStrict for one that is too long to be held."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise NotStrict(f"longer than {LONGEST_LINE >> 20} MiB")
        yield line


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise NotStrict(f"the key {twice[:80]!r} is there twice")
    return found


def _constant(text: str) -> NoReturn:
    raise NotStrict(f"{text} is not a number")


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise NotStrict(f"a number has {len(text):,} digits, more than {MOST_DIGITS}")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise NotStrict(f"{text[:MOST_DIGITS]} is too large for a number")
    return value
