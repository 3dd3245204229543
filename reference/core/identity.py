"""Identity of the content of a block (H1-H5, H8).

A request's identity is its token bytes, cut into *segments*: a new segment begins at each block in
which a span begins, and carries those spans as marks. A path of the prefix index spells out
namespace, tokens and marks in full, so two requests share a node only if everything before its end
is equal (H3); lookups use no hash. Digests are computed only for keys that leave the process.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, SupportsIndex, TypeAlias

import numpy as np

TOKEN_BYTES = 4
"""Token ids are int32 in the machine's byte order; digests use little endian."""

Tokens: TypeAlias = "bytes | bytearray | memoryview | array[int] | list[int] | tuple[int, ...]"


class IdentityError(ValueError):
    """Malformed identity input, refused before it touches any state (H8)."""


class Namespace(NamedTuple):
    """Separates equal tokens of different tenants; fields are tagged by position (H2)."""

    adapter: str | None = None
    adapter_version: str | None = None
    salt: str | None = None
    key: str | None = None
    """A caller's own."""


DEFAULT_NAMESPACE = Namespace()


class Span(NamedTuple):
    """Placeholder tokens [start, start + length) of one media item with this content hash."""

    kind: str
    start: int
    length: int
    content: str


class Segment(NamedTuple):
    """Token bytes [start, stop); `marks` are the spans of the first block; the last is open."""

    start: int
    stop: int
    marks: tuple[Span, ...]


PLAIN = (Segment(0, sys.maxsize, ()),)
"""Segments of a request without spans."""


def token_bytes(tokens: Tokens) -> bytes:
    """Return int32 token ids as bytes.

    Buffers are taken as they are: raw bytes, or 4-byte integers such as
    `memoryview(int32_array)`. Lists and tuples of Python ints are converted. Raises IdentityError.
    """
    if isinstance(tokens, bytes):
        data = tokens
    elif isinstance(tokens, (list, tuple)):
        data = _pack(tokens)
    else:
        data = _buffer_bytes(tokens)
    if len(data) % TOKEN_BYTES:
        raise IdentityError(
            f"token buffer of {len(data)} bytes is no whole number of int32; {_GIVE_INT32}"
        )
    return data


_GIVE_INT32 = "give int32, for example numpy.asarray(ids, dtype='int32')"
_RAW = frozenset("Bc")
_NATIVE = ("", "@", "=", "<" if sys.byteorder == "little" else ">")
_INTEGERS = frozenset(order + letter for order in _NATIVE for letter in "iIlL")
"""Formats of 4-byte integers in the machine's byte order; 8-byte ones fail by their size."""


def _pack(tokens: list[int] | tuple[int, ...]) -> bytes:
    """Unsigned first: CPython converts lists to them 2.5 times as fast as to signed ints."""
    if len(tokens) < _FEW:
        return _pack_signed(tokens)
    try:
        data = array("I", tokens).tobytes()
    except (OverflowError, TypeError):
        return _pack_signed(tokens)
    if np.frombuffer(data, np.int32).min() < 0:  # an id from 2**31 on
        return _pack_signed(tokens)
    return data


_FEW = 64
"""Fewer tokens are converted sooner than they are checked for ids from 2**31 on."""


def _pack_signed(tokens: list[int] | tuple[int, ...]) -> bytes:
    try:
        return array("i", tokens).tobytes()
    except (OverflowError, TypeError) as error:
        index, wrong = next(item for item in enumerate(tokens) if not _is_int32(item[1]))
        raise IdentityError(
            f"token {index} is {wrong!r}: ids must be int32, for example 42"
        ) from error


def _is_int32(token: object) -> bool:
    return isinstance(token, SupportsIndex) and -(2**31) <= token.__index__() < 2**31


def _buffer_bytes(tokens: bytearray | memoryview | array[int]) -> bytes:
    try:
        view = memoryview(tokens)
    except TypeError as error:
        raise IdentityError(
            f"tokens are a {type(tokens).__name__}, no buffer and no list; {_GIVE_INT32}"
        ) from error
    if view.format in _RAW or (view.format in _INTEGERS and view.itemsize == TOKEN_BYTES):
        return view.tobytes()
    raise IdentityError(f"token buffer has items of format {view.format!r}; {_GIVE_INT32}")


def equal_units(
    edge: bytearray, tokens: bytes | bytearray, position: int, size: int, stride: int
) -> int:
    """Count leading whole units in which `edge` equals `tokens` from byte `position` on (H3)."""
    count = size // TOKEN_BYTES
    here = np.frombuffer(edge, np.int32, count)
    there = np.frombuffer(tokens, np.int32, count, position)
    differs = here != there
    first = int(differs.argmax())
    equal = first if differs[first] else count
    return equal * TOKEN_BYTES // stride


def check_spans(spans: Sequence[Span], num_tokens: int) -> None:
    """Refuse spans that are out of order, overlapping, past the prompt or without a hash (H8)."""
    end = 0
    for index, span in enumerate(spans):
        problem = _span_problem(span, end, num_tokens)
        if problem:
            raise IdentityError(f"span {index} ({span.kind} at {span.start}) {problem}")
        end = span.start + span.length


def _span_problem(span: Span, end: int, num_tokens: int) -> str:
    if not span.content:
        return "has no content hash"
    if span.length < 1:
        return f"has length {span.length}; it must cover at least one token"
    if span.start < end:
        return f"begins before token {end}, where the span before it ends (out of order?)"
    if span.start + span.length > num_tokens:
        return f"ends at {span.start + span.length}, past the prompt of {num_tokens} tokens"
    return ""


def segments(spans: Sequence[Span], block_size: int) -> tuple[Segment, ...]:
    """Cut a request at each block in which a span begins (H1)."""
    if not spans:
        return PLAIN
    starts = {0: ()} | _marks_by_block(spans, block_size)
    edges = [block * block_size * TOKEN_BYTES for block in starts]
    return tuple(map(Segment, edges, [*edges[1:], sys.maxsize], starts.values()))


def _marks_by_block(spans: Iterable[Span], block_size: int) -> dict[int, tuple[Span, ...]]:
    marks: dict[int, tuple[Span, ...]] = {}
    for span in spans:
        block = span.start // block_size
        marks[block] = (*marks.get(block, ()), span)
    return marks


Digest: TypeAlias = Callable[[bytes], bytes]

HASH_ALGORITHMS: dict[str, Digest] = {
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "blake2b": lambda data: hashlib.blake2b(data, digest_size=32).digest(),
    "sha3_256": lambda data: hashlib.sha3_256(data).digest(),
    "builtin": lambda data: hash(data).to_bytes(8, "little", signed=True),
}
"""Name -> digest. All but `builtin` agree between processes and are cryptographic (H2)."""

_warned: set[str] = set()


def hash_algorithm(name: str) -> Digest:
    """Return a digest by name; warns once if its keys differ from process to process (H2)."""
    if name == "builtin" and name not in _warned:
        _warned.add(name)
        warnings.warn(
            "hash_algorithm 'builtin' gives other keys in every process; use 'sha256' for keys "
            "that are shared or stored",
            stacklevel=3,
        )
    return HASH_ALGORITHMS[name]


def encode(*fields: str | int | bytes | None) -> bytes:
    """Injective encoding of a field list: each field with its type and its length (H2)."""
    parts = []
    for field in fields:
        tag, data = _field(field)
        parts.append(tag + len(data).to_bytes(8, "little") + data)
    return b"".join(parts)


def _field(field: str | int | bytes | None) -> tuple[bytes, bytes]:
    if field is None:
        return b"n", b""
    if isinstance(field, int):
        return b"i", str(field).encode()
    return (b"b", field) if isinstance(field, bytes) else (b"s", _utf8(field))


def _utf8(text: str) -> bytes:
    """Encode any string of Python, also one that a client sent with a lone surrogate."""
    return text.encode("utf-8", "surrogatepass")


class KeyChain:
    """Chained keys: a key stands for all content up to the end of its block (H1).

        root: prefix, namespace
          key: key before it (or root), tokens of the block, spans that begin in it

    `prefix` holds common inputs, for example the group (H7) and the epoch (H6).
    """

    def __init__(self, digest: Digest, *prefix: str | int | bytes) -> None:
        self._digest, self._prefix = digest, prefix

    def root(self, namespace: Namespace) -> bytes:
        """Return the predecessor of the first key of a chain."""
        return self._digest(encode(*self._prefix, *namespace))

    def link(self, parent: bytes, tokens: bytes, spans: Sequence[Span]) -> bytes:
        """Return the key of a block with these token bytes; `spans` begin in it."""
        fields = (field for span in spans for field in span)
        return self._digest(encode(parent, little_endian(tokens), *fields))


class BlockKeys:
    """Keys of a request's full blocks, extended or cut as its tokens change (H5)."""

    def __init__(
        self, chain: KeyChain, *, block_size: int, namespace: Namespace = DEFAULT_NAMESPACE
    ) -> None:
        self._chain, self._block_size = chain, block_size
        self._root = chain.root(namespace)
        self.keys: list[bytes] = []

    def extend(self, tokens: Tokens, spans: Sequence[Span] = ()) -> None:
        """Add the keys of the full blocks of `tokens` (the whole history) not yet hashed."""
        data, stride = token_bytes(tokens), self._block_size * TOKEN_BYTES
        marks = _marks_by_block(spans, self._block_size)
        for block in range(len(self.keys), len(data) // stride):
            parent = self.keys[block - 1] if block else self._root
            content = data[block * stride : (block + 1) * stride]
            self.keys.append(self._chain.link(parent, content, marks.get(block, ())))

    def truncate(self, num_tokens: int) -> None:
        """Forget every key that depends on a token from `num_tokens` on."""
        del self.keys[num_tokens // self._block_size :]


def little_endian(data: bytes) -> bytes:
    """Token bytes in the order that keys are made of, on any machine."""
    if sys.byteorder == "little":
        return data
    swapped = array("i", data)
    swapped.byteswap()
    return swapped.tobytes()
