"""Every field of a record of choices, and values of it that are not legal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin

from kvproof.harness.checked import NOT_EMPTY, hints_of

FREE_TEXT = {"slowest_answer_reason"}
"""Fields of text that may be any text."""


def walked(kind: type, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, hint in hints_of(kind).items():
        if is_dataclass(hint):
            yield from walked(cast("type", hint), (*path, name))
        else:
            yield (*path, name), hint


def _options(hint: Any) -> list[Any]:
    return [None if each is type(None) else each for each in get_args(hint)]


def illegal(path: tuple[str, ...], hint: Any) -> Iterator[object]:
    """Values of another type, and values of the right type that mean nothing."""
    yield from (1.5j, object())
    yield from () if None in _options(hint) else (None,)
    plain = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    origin = get_origin(plain) or plain
    if origin is tuple:
        yield from (("maybe",), (-4,), (0, -4), 4, "full")
    elif origin is dict:
        yield from ({"no such": 1}, {1: "x"}, {"": ""}, ["a"])
    elif origin in (int, float):
        yield from (-1, True, "1", float("inf"), float("nan"), 1 << 70)
    elif origin is Mapping:
        yield from (["a"], {1: "x"})
    elif origin in (Union, UnionType):
        yield from (4, "maybe", {})
    elif origin is bool:
        yield from (1, "no")
    elif path[-1] not in FREE_TEXT:
        yield "" if NOT_EMPTY in getattr(hint, "__metadata__", ()) else "maybe"
