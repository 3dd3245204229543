"""What `content_hash` reads is what the suite `media` draws: each writer, in each layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from kvproof.reference.core import media_hash
from kvproof.suites.reference.media.values import LAYOUTS, VALUES, Value, build

NOT_DRAWN = {
    "_tensor": "torch is no requirement of the suite; test_reference_media_hash has tensors",
    "_image": "nor is Pillow; test_reference_media_hash has images",
}
WRITERS = media_hash._WRITERS
KIN = ("_enum", "_dataclass", "_named_tuple", "_ndarray", "_tensor", "_image", "_mapping")


def _parts(made: Any) -> Iterator[Any]:
    yield made
    inner: Any = made.items() if isinstance(made, Mapping) else made
    if isinstance(made, (list, tuple, set, frozenset, Mapping)):
        for part in inner:
            yield from _parts(part)


def _names(part: Any) -> Iterator[str]:
    """Yield what a value is: its type or the writer of its kin, and the kind of an array."""
    known = type(part) in WRITERS
    yield type(part).__name__ if known else media_hash._writer_of_kin(part).__name__
    if isinstance(part, np.ma.MaskedArray) and part.mask.any():
        yield "masked"
    if isinstance(part, np.ndarray) and (part.dtype.names or part.dtype.hasobject):
        yield "objects" if part.dtype.hasobject else "records"
    if isinstance(part, memoryview) and part.format == "B":
        yield f"bytes in {part.ndim} dimensions"


@cache
def _drawn() -> frozenset[str]:
    found: set[str] = set()

    @settings(max_examples=500, database=None, derandomize=True, deadline=None)
    @given(VALUES)
    def collect(value: Value) -> None:
        for twisted in range(LAYOUTS):
            for part in _parts(build(value, twisted=twisted)):
                found.update(_names(part))

    collect()
    return frozenset(found)


@pytest.mark.parametrize("kind", sorted(each.__name__ for each in WRITERS))
def test_each_plain_type_is_drawn(kind: str) -> None:
    assert kind in _drawn()


@pytest.mark.parametrize("writer", KIN)
def test_each_writer_of_kin_is_drawn_or_has_its_reason(writer: str) -> None:
    assert (writer in _drawn()) != (writer in NOT_DRAWN)


@pytest.mark.parametrize("kind", ["masked", "records", "objects", "bytes in 2 dimensions"])
def test_each_kind_of_array_is_drawn(kind: str) -> None:
    assert kind in _drawn()
