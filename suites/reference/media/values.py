"""Values to hash, spelled in JSON, so that equality is known without any hash.

A value is a list: its type and its content, for example `["tuple", [["int", 1]]]`. `build` makes
the Python object, in one of several layouts with the same meaning.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Draw

Value: TypeAlias = list[Any]

DTYPES = ("int16", "uint16", "int32", "uint8", "float32", "float16", "bool", "datetime64[s]")
LAYOUTS = 3
"""Layouts of each value: plain; spread over memory in another byte order; as another type."""


@dataclass(frozen=True)
class Grid:
    """A dataclass as processors return it."""

    rows: object
    columns: object


class Corner(NamedTuple):
    """A named tuple as processors return it."""

    rows: object
    columns: object


class Mode(Enum):
    """A setting of a processor."""

    WHOLE = 0
    TILES = 1


def meaning(value: Value) -> Hashable:
    """Return the mathematical value: order counts where it has a meaning."""
    kind, held = value
    if kind == "array":
        dtype, shape, numbers = held
        return kind, dtype, tuple(shape), tuple(numbers)
    if kind == "masked":
        dtype, shape, numbers, mask = held
        seen = (None if hidden else each for each, hidden in zip(numbers, mask, strict=True))
        return kind, dtype, tuple(shape), tuple(seen)
    if kind == "record":
        dtypes, count, first = held
        return kind, tuple(dtypes), count, count and first
    if kind == "dict":
        return kind, frozenset((meaning(key), meaning(part)) for key, part in held)
    if kind == "set":
        return kind, frozenset(map(meaning, held))
    return kind, tuple(map(meaning, held)) if isinstance(held, list) else held


def build(value: Value, *, twisted: int = 0) -> Any:
    """Return the object in layout `twisted` of LAYOUTS; all of them are equal."""
    kind, held = value
    if kind in _NESTED:
        parts = held[::-1] if twisted and kind in _OTHER_TYPES else held
        made = _NESTED[kind](parts, lambda part: build(part, twisted=twisted))
        return _OTHER_TYPES[kind](made) if twisted == 2 and kind in _OTHER_TYPES else made
    if kind in _ARRAYS_OF:
        return _ARRAYS_OF[kind](*held, twisted=twisted)
    if kind == "bytes":
        return (bytes, bytearray, memoryview)[twisted](bytes.fromhex(held))
    return _PLAIN[kind](held)


_PLAIN: dict[str, Callable[[Any], object]] = {
    "none": lambda _: None,
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "complex": complex,
    "mode": Mode,
}

# Keys and members of sets are built plain: mutable objects cannot be members.
_NESTED: dict[str, Callable[[list[Any], Callable[[Value], Any]], object]] = {
    "list": lambda parts, make: [make(part) for part in parts],
    "tuple": lambda parts, make: tuple(make(part) for part in parts),
    "dict": lambda parts, make: {build(key): make(part) for key, part in parts},
    "set": lambda parts, _: {build(part) for part in parts},
    "grid": lambda parts, make: Grid(*map(make, parts)),
    "corner": lambda parts, make: Corner(*map(make, parts)),
    "objects": lambda parts, make: _objects([make(part) for part in parts]),
}
_OTHER_TYPES: dict[str, Callable[[Any], object]] = {"dict": MappingProxyType, "set": frozenset}
"""Kind -> a type with the same meaning."""


def _objects(parts: list[Any]) -> npt.NDArray[Any]:
    """Return an array of Python objects."""
    found = np.empty(len(parts), object)
    for index, part in enumerate(parts):
        found[index] = part
    return found


def _array(dtype: str, shape: list[int], numbers: list[int], *, twisted: int) -> Any:
    plain = np.array(numbers, "i8").astype(dtype).reshape(shape)
    if not twisted:
        return plain
    if twisted == 2:
        return _as_another_type(plain)
    spread = np.zeros([2 * size for size in shape], plain.dtype.newbyteorder(">"), order="F")
    every_other: Any = (..., *(slice(None, None, 2) for _ in shape))
    view: npt.NDArray[Any] = spread[every_other]
    view[...] = plain
    return view


def _as_another_type(plain: npt.NDArray[Any]) -> Any:
    """Return a scalar, an `array` or a view of the same numbers; a view of flat bytes is bytes."""
    if plain.ndim == 0:
        return plain[()]
    if plain.ndim == 1 and plain.dtype.char in "hHif":
        return array(plain.dtype.char, plain.tolist())
    bare = plain.dtype.char == "M" or (plain.ndim == 1 and plain.dtype.char == "B")
    dense: Any = np.ascontiguousarray(plain)  # as a buffer, which its type does not say
    return plain if bare else memoryview(dense)


def _masked(
    dtype: str, shape: list[int], numbers: list[int], mask: list[int], *, twisted: int
) -> Any:
    """Return an array with hidden numbers, which are others in each layout."""
    hidden = np.array(mask, bool).reshape(shape)
    plain = _array(dtype, shape, numbers, twisted=0)
    spread = _array(dtype, shape, [0 for _ in numbers], twisted=twisted and 1)
    spread[...] = np.where(hidden, np.array(twisted % 2, dtype), plain)
    fill: Any = np.array(1, dtype)[()]
    return np.ma.MaskedArray(data=spread, mask=hidden, fill_value=fill)


def _record(dtypes: list[str], count: int, first: int, *, twisted: int) -> npt.NDArray[Any]:
    """Return an array of records; those of another layout have padding."""
    names = [(f"f{place}", dtype) for place, dtype in enumerate(dtypes)]
    found = np.zeros(count, np.dtype(names, align=bool(twisted)))
    for place, (name, _) in enumerate(names):
        found[name] = np.arange(first + place, first + place + count) % 2
    return found


_ARRAYS_OF: dict[str, Callable[..., Any]] = {
    "array": _array,
    "masked": _masked,
    "record": _record,
}


# --- drawing ---

_KEYS = st.sampled_from([["str", "a"], ["str", "b"], ["int", 0], ["bytes", "61"]])
_ARRAYS = st.builds(
    lambda dtype, shape, first: ["array", _numbered(dtype, shape, first)],
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 1),
)
_MASKED = _ARRAYS.flatmap(
    lambda value: st.lists(
        st.integers(0, 1), min_size=len(value[1][2]), max_size=len(value[1][2])
    ).map(lambda mask: ["masked", [*value[1], mask]])
)
_RECORDS = st.builds(
    lambda dtypes, count, first: ["record", [dtypes, count, first]],
    st.lists(st.sampled_from(("int16", "uint8", "float32")), min_size=1, max_size=3),
    st.integers(0, 2),
    st.integers(0, 1),
)
_LEAVES = st.one_of(
    st.just(["none", 0]),
    st.builds(lambda b: ["bool", b], st.booleans()),
    st.builds(lambda n: ["int", n], st.sampled_from([0, 1, 2, 10, 12, -1, 2**64])),
    st.builds(lambda x: ["float", x], st.sampled_from([0.0, 1.0, 2.0, 0.5])),
    st.builds(lambda x: ["complex", x], st.sampled_from(["0j", "1j", "(1+0j)", "(1+1j)"])),
    st.builds(lambda n: ["mode", n], st.integers(0, 1)),
    st.builds(lambda s: ["str", s], st.sampled_from(["", "a", "b", "ab", "0", "1"])),
    st.builds(lambda s: ["bytes", s], st.sampled_from(["", "61", "6162", "00", "0000"])),
    _ARRAYS,
    _MASKED,
    _RECORDS,
)


def _numbered(dtype: str, shape: list[int], first: int) -> list[Any]:
    count = int(np.prod(shape, dtype=int))
    numbers = range(first, first + count)
    return [dtype, shape, [n % 2 if dtype == "bool" else n for n in numbers]]


def _nested(parts: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
    several = st.lists(parts, max_size=3)
    by_key = st.lists(st.tuples(_KEYS, parts).map(list), max_size=3, unique_by=lambda p: str(p[0]))
    return st.one_of(
        several.map(lambda held: ["list", held]),
        several.map(lambda held: ["tuple", held]),
        by_key.map(lambda held: ["dict", held]),
        st.lists(_KEYS, max_size=3, unique_by=str).map(lambda held: ["set", held]),
        st.tuples(st.sampled_from(("grid", "corner")), st.lists(parts, min_size=2, max_size=2)).map(
            list
        ),
        several.map(lambda held: ["objects", held]),
    )


VALUES = st.one_of(_ARRAYS, st.recursive(_LEAVES, _nested, max_leaves=6))


def changed(value: Value, draw: Draw) -> Value:
    """Return a value that differs in one place: a leaf, a type, a shape, or the nesting."""
    kind, held = value
    if kind in ("list", "tuple") and held and draw(st.booleans()):
        index = draw(st.integers(0, len(held) - 1))
        return [kind, [*held[:index], changed(held[index], draw), *held[index + 1 :]]]
    variant: Value = draw(st.sampled_from(_variants(kind, held)))
    return variant


def regrouped(draw: Draw) -> tuple[Value, Value]:
    """Return two values of the same parts in the same order, nested in two ways."""
    outer, inner = (draw(st.sampled_from(("list", "tuple"))) for _ in range(2))
    parts = draw(st.lists(_LEAVES, min_size=1, max_size=3))
    cuts = [draw(st.integers(0, len(parts))) for _ in range(2)]
    one, other = ([outer, [[inner, parts[:cut]], *parts[cut:]]] for cut in cuts)
    return one, other


def _variants(kind: str, held: Any) -> list[Value]:
    value = [kind, held]
    if kind in ("list", "tuple"):
        other = "tuple" if kind == "list" else "list"
        return [[other, held], [kind, [value]], [kind, [*held, value]]]
    if kind == "masked":
        return _variants_of_masks(*held)
    if kind != "array":
        return [["list", [value]], ["tuple", [value, value]], ["str", str(held)]]
    dtype, shape, numbers = held
    return [
        *(["array", [each, shape, numbers]] for each in DTYPES if "bool" not in (each, dtype)),
        ["array", [dtype, [*shape, 1], numbers]],
        ["array", [dtype, [1, *shape], numbers]],
        ["array", [dtype, shape[::-1], numbers]],
        ["list", [value]],
    ]


def _variants_of_masks(
    dtype: str, shape: list[int], numbers: list[int], mask: list[int]
) -> list[Value]:
    """Return arrays with another mask, and one without."""
    turned = [["masked", [dtype, shape, numbers, [1 - each for each in mask]]]] if mask else []
    return [
        *turned,
        ["array", [dtype, shape, numbers]],
        ["list", [["masked", [dtype, shape, numbers, mask]]]],
    ]
