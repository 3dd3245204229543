"""Content hash of media (H4): 256 bits over values, never over addresses.

Every value is written as a tag, its size and its bytes, so the encoding is injective at any
nesting. Unordered containers are written as their sorted parts. Only values count: a transposed
view, a big-endian copy and a tensor of the same numbers, type and shape have one hash, in every
process and on every machine.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from kvproof.reference.core.identity import IdentityError

Feed: TypeAlias = Callable[[bytes], object]
"""Takes the encoding piece by piece."""


def content_hash(data: object, *, metadata: object = None) -> str:
    """Return 64 hexadecimal digits over an item and the other inputs of its encoder.

    Reads bytes, strings, numbers, None, enums, dataclasses, mappings, lists, tuples, sets, numpy
    arrays, torch tensors and still images, nested at will. Raises IdentityError for other types,
    because the hash of an address or of a `repr` would be wrong.
    """
    state = hashlib.sha256(b"kvproof media 1\0")
    try:
        _write(state.update, data)
        _write(state.update, metadata)
    except RecursionError as error:
        raise IdentityError(
            f"media of type {_name(data)} is nested too deep, or holds itself"
        ) from error
    return state.hexdigest()


def _write(feed: Feed, value: object) -> None:
    writer = _WRITERS.get(type(value)) or _writer_of_kin(value)
    writer(feed, value)


def _leaf(feed: Feed, tag: bytes, data: bytes) -> None:
    feed(tag + len(data).to_bytes(8, "little") + data)


def _count(feed: Feed, tag: bytes, count: int) -> None:
    feed(tag + count.to_bytes(8, "little"))


def _digest(*values: object) -> bytes:
    state = hashlib.sha256()
    for value in values:
        _write(state.update, value)
    return state.digest()


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


# --- plain values ---


def _text(feed: Feed, value: str) -> None:
    _leaf(feed, b"s", value.encode("utf-8", "surrogatepass"))


def _sequence(feed: Feed, value: list[Any] | tuple[Any, ...]) -> None:
    _count(feed, b"l" if isinstance(value, list) else b"t", len(value))
    for part in value:
        _write(feed, part)


def _set(feed: Feed, value: Set[Any]) -> None:
    _unordered(feed, b"u", [_digest(part) for part in value])


def _mapping(feed: Feed, value: Mapping[Any, Any]) -> None:
    _unordered(feed, b"m", [_digest(key, part) for key, part in value.items()])


def _unordered(feed: Feed, tag: bytes, digests: list[bytes]) -> None:
    _count(feed, tag, len(digests))
    feed(b"".join(sorted(digests)))


def _fields(feed: Feed, tag: bytes, value: object, names: Iterable[str]) -> None:
    parts = [(name, getattr(value, name)) for name in names]
    _count(feed, tag, len(parts))
    _text(feed, _name(value))
    for name, part in parts:
        _text(feed, name)
        _write(feed, part)


def _view(feed: Feed, value: memoryview) -> None:
    """A view of bytes is bytes, a view of numbers an array."""
    if value.format == "B" and value.ndim == 1:
        _leaf(feed, b"b", value.tobytes())
    else:
        _ndarray(feed, np.asarray(value))


_WRITERS: dict[type, Callable[[Feed, Any], None]] = {
    type(None): lambda feed, _: _leaf(feed, b"n", b""),
    bool: lambda feed, value: _leaf(feed, b"?", bytes([value])),
    int: lambda feed, value: _leaf(feed, b"i", b"%x" % value),
    float: lambda feed, value: _leaf(feed, b"f", struct.pack("<d", value)),
    complex: lambda feed, value: _leaf(feed, b"c", struct.pack("<2d", value.real, value.imag)),
    str: _text,
    bytes: lambda feed, value: _leaf(feed, b"b", value),
    bytearray: lambda feed, value: _leaf(feed, b"b", bytes(value)),
    memoryview: _view,
    list: _sequence,
    tuple: _sequence,
    set: _set,
    frozenset: _set,
    dict: _mapping,
}
"""For exactly these types; a subclass may carry more than its base shows."""


def _writer_of_kin(value: object) -> Callable[[Feed, Any], None]:
    """Return the writer of a value by its base types. Raises IdentityError."""
    kinds: tuple[tuple[bool, Callable[[Feed, Any], None]], ...] = (
        (isinstance(value, Enum), _enum),
        (is_dataclass(value) and not isinstance(value, type), _dataclass),
        (isinstance(value, tuple) and hasattr(value, "_fields"), _named_tuple),
        (isinstance(value, (np.ndarray, np.generic, array)), _ndarray),
        (_is_of("torch", "Tensor", value), _tensor),
        (_is_of("PIL.Image", "Image", value), _image),
        (isinstance(value, Mapping) and not getattr(value, "__dict__", None), _mapping),
    )
    for fits, writer in kinds:
        if fits:
            return writer
    raise IdentityError(
        f"media of type {_name(value)} cannot be read by value; give its bytes, an array, or a "
        "content hash of your own"
    )


def _is_of(module: str, kind: str, value: object) -> bool:
    base = getattr(sys.modules.get(module), kind, None)
    return isinstance(base, type) and isinstance(value, base)


def _enum(feed: Feed, value: Enum) -> None:
    _fields(feed, b"e", value, ("value",))


def _dataclass(feed: Feed, value: Any) -> None:
    _fields(feed, b"d", value, [field.name for field in fields(value)])


def _named_tuple(feed: Feed, value: Any) -> None:
    _fields(feed, b"d", value, value._fields)


# --- arrays, tensors, images ---


def _ndarray(feed: Feed, value: Any) -> None:
    """Write type name, shape and values in C order; padding and byte order are no content."""
    if isinstance(value, np.ma.MaskedArray):
        _count(feed, b"k", 2)
        _write(feed, np.ma.getmaskarray(value))
        _write(feed, np.asarray(value.filled()))
        return
    numbers = np.asarray(value)
    kind = numbers.dtype
    if kind.hasobject:
        _array(feed, "object", numbers.shape, b"")
        _write(feed, numbers.ravel().tolist())
    elif kind.names is not None:
        _array(feed, "structured", numbers.shape, b"")
        _write(feed, tuple((name, numbers[name]) for name in kind.names))
    elif kind.type in _PADDED:
        raise IdentityError(f"an array of {kind.name} has padding in its numbers; give float64")
    else:
        _array(feed, kind.name, numbers.shape, _little(numbers).tobytes())


_PADDED = (np.longdouble, np.clongdouble) if np.finfo(np.longdouble).nmant == 63 else ()
"""Numbers of ten bytes, stored in sixteen."""


def _array(feed: Feed, kind: str, shape: tuple[int, ...], data: bytes) -> None:
    _count(feed, b"a", len(shape))
    feed(struct.pack(f"<{len(shape)}q", *shape))
    _text(feed, kind)
    _leaf(feed, b"b", data)


def _little(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    order = numbers.dtype.byteorder
    swapped = order == ">" or (order == "=" and sys.byteorder == "big")
    return numbers.astype(numbers.dtype.newbyteorder("<")) if swapped else numbers


def _tensor(feed: Feed, value: Any) -> None:
    """Write a tensor of any type as the array of its numbers, without going through floats."""
    torch = sys.modules["torch"]
    kind = str(value.dtype).removeprefix("torch.")
    try:
        plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError, NotImplementedError) as error:  # torch: a meta tensor's `cpu`
        raise IdentityError(
            f"a tensor of {kind}, layout {value.layout}, on {value.device} cannot be read by "
            "value; give a dense one"
        ) from error
    _array(feed, kind, tuple(value.shape), raw)


def _image(feed: Feed, value: Any) -> None:
    """Write pixels and everything else that affects the appearance."""
    count = getattr(value, "n_frames", 1)
    if count > 1:
        raise IdentityError(f"an image file of {count} frames is a video; give its frames")
    palette = (value.palette.mode, value.getpalette(None)) if value.palette else None
    look = (palette, value.info.get("transparency"), value.getexif().get(_ORIENTATION))
    _count(feed, b"p", 4)
    for part in (value.mode, value.size, look, value.tobytes()):
        _write(feed, part)


_ORIENTATION = 0x0112
"""Exif: how a viewer, and many a preprocessor, turns the picture."""
