"""Records of choices -> the fields with a value that is not legal, by their annotations alone.

A field is a `bool`, a `Literal`, text, a number with a `Rule`, a record, or a tuple, a mapping or
an alternative of these. Any other annotation is an error: no field is left without a check. It
runs inside the engine's environment: standard library of Python 3.10.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

LARGEST = 1 << 20
"""Largest number of blocks, tokens, rows or steps in a record of choices."""
_SHOWN = 80


class Rule(NamedTuple):
    """A condition on values that have their type."""

    holds: Callable[[Any], bool]
    words: str


def within(least: float, most: float) -> Rule:
    """Return the rule of a number with two limits."""
    return Rule(lambda number: bool(least <= number <= most), f"{least:.12g} to {most:.12g}")


def one_of(names: Collection[str]) -> Rule:
    """Return the rule of a name in a table."""
    return Rule(lambda name: name in names, f"one of {', '.join(names)}")


NOT_EMPTY = Rule(bool, "not empty")
Count: TypeAlias = Annotated[int, within(0, LARGEST)]
Positive: TypeAlias = Annotated[int, within(1, LARGEST)]
Name: TypeAlias = Annotated[str, NOT_EMPTY]


class Wrong(NamedTuple):
    """A field whose value is not legal."""

    field: str
    value: str
    legal: str

    def __str__(self) -> str:
        return f"{self.field} = {self.value}, legal: {self.legal}"


def wrong_fields(record: object, kind: type | None = None) -> Iterator[Wrong]:
    """Find the fields of a record, and of the records in it, with a value that is not legal.

    `kind` is its type, where the record may be of a subclass.
    """
    for name, hint in hints_of(kind or type(record)).items():
        yield from _wrong(hint, getattr(record, name), name)


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """Return field -> annotation of a record. Raises TypeError for one that nothing checks."""
    hints = get_type_hints(kind, include_extras=True)
    found = {each.name: hints[each.name] for each in dataclasses.fields(cast("Any", kind))}
    for name, hint in found.items():
        if not _is_checked(hint):
            raise TypeError(f"{kind.__name__}.{name}: nothing checks {hint}; see {__name__}")
    return found


def _is_checked(hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return inner[0] in (int, float) or _is_checked(inner[0])
    if origin in _CONTAINERS or origin in _UNIONS:
        return all(_is_checked(each) for each in inner if each is not Ellipsis)
    plain = hint in (bool, str, Any, type(None)) or dataclasses.is_dataclass(hint)
    return plain or origin is Literal


_CONTAINERS = (tuple, dict, Mapping)
_UNIONS = (Union, types.UnionType)


def _wrong(hint: Any, value: Any, place: str) -> Iterator[Wrong]:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from _wrong_by_rules(hint, value, place)
    elif origin in _UNIONS:
        found = [list(_wrong(each, value, place)) for each in inner]
        if all(found):
            yield max(found, key=lambda each: each[0].field.count("."))[0]
    elif not _has_type(hint, value):
        yield Wrong(place, _shown(value), legal(hint))
    elif dataclasses.is_dataclass(hint):
        for each in wrong_fields(value, cast("type", hint)):
            yield each._replace(field=f"{place}.{each.field}")
    elif origin is tuple:
        for at, item in enumerate(value):
            yield from _wrong(inner[0], item, f"{place}[{at}]")
    elif origin in _CONTAINERS:
        for name, item in value.items():
            yield from _wrong(inner[0], name, f"{place}, key")
            yield from _wrong(inner[1], item, f"{place}[{_shown(name)}]")


def _wrong_by_rules(hint: Any, value: Any, place: str) -> Iterator[Wrong]:
    plain, *rules = get_args(hint)
    found = list(_wrong(plain, value, place))
    for each in found:
        yield each._replace(legal=legal(hint)) if each.field == place else each
    if not found and not all(rule.holds(value) for rule in rules):
        yield Wrong(place, _shown(value), legal(hint))


def _has_type(hint: Any, value: object) -> bool:
    """Whether the value is of the type, its items left out; JSON makes lists of tuples."""
    origin = get_origin(hint) or hint
    if origin is Literal:
        return any(isinstance(value, type(each)) and value == each for each in get_args(hint))
    if origin is Any:
        return True
    if origin in (int, float):
        whole = hasattr(value, "__index__") and not isinstance(value, bool)
        return whole or (origin is float and isinstance(value, float))
    return isinstance(value, (tuple, list) if origin is tuple else origin)


def legal(hint: Any) -> str:
    """Return the legal values of an annotation in words."""
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        return ", ".join([legal(inner[0]), *(rule.words for rule in inner[1:])])
    if origin is Literal or origin in _UNIONS:
        return " or ".join(repr(each) if origin is Literal else legal(each) for each in inner)
    if origin is tuple:
        return f"a tuple, each {legal(inner[0])}"
    if origin in _CONTAINERS:
        return f"a mapping, {legal(inner[0])} to {legal(inner[1])}"
    return _IN_WORDS.get(origin, f"a {getattr(origin, '__name__', origin)}")


_IN_WORDS = {
    bool: "True or False",
    float: "a number",
    int: "a whole number",
    str: "a text",
    type(None): "None",
}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
