"""Every kind of buffer that the reference takes tokens in, chosen by the name of a request.

A buffer is overwritten after the call: its caller may use it again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from zlib import crc32

import numpy as np

from kvproof.reference.core.identity import Tokens


def _every_other(tokens: tuple[int, ...]) -> memoryview:
    return _view(np.repeat(np.array(tokens, np.int32), 2))[::2]


def _view(numbers: Any) -> memoryview:
    """Return a view of an array, whose type does not say that it is a buffer."""
    return memoryview(numbers)


FORMS: dict[str, Callable[[tuple[int, ...]], Tokens]] = {
    "tuple": lambda tokens: tokens,
    "list": list,
    "bytes": lambda tokens: array("i", tokens).tobytes(),
    "bytearray": lambda tokens: bytearray(array("i", tokens).tobytes()),
    "array of int": lambda tokens: array("i", tokens),
    "array of unsigned int": lambda tokens: array("I", tokens),
    "memoryview": lambda tokens: _view(np.array(tokens, np.int32)),
    "memoryview with steps": _every_other,
    "memoryview of bytes": lambda tokens: memoryview(bytearray(array("i", tokens).tobytes())),
}
"""Name -> the function that makes it."""


def in_form(tokens: tuple[int, ...], name: str) -> Tokens:
    """Return tokens in one of FORMS, always the same for a name; a tuple if they do not fit."""
    form = list(FORMS)[crc32(name.encode()) % len(FORMS)]
    try:
        return FORMS[form](tokens)
    except OverflowError:  # it is the reference that refuses them
        return tokens


def spoil(buffer: Tokens) -> None:
    """Overwrite a buffer after the call that it was made for."""
    writable: Any = buffer
    if isinstance(buffer, (list, array, bytearray, memoryview)):
        with suppress(TypeError):  # memory that is read-only
            for place in range(len(writable)):
                writable[place] = 7
