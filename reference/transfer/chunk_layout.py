"""A chunk as one flat range of bytes, described by a value (G2).

The chunk holds its groups one after the other, each aligned to 16 bytes, with zeros in the gaps. A
group holds planes (K of all layers, then V of all layers), a plane holds tokens, and a token heads,
for any order in the engine's pages. So chunks of engines with other pages are equal, and a chunk is
the same on a GPU, in host memory, in a file and on the wire.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm, prod

import msgspec

from kvproof.reference.core.attention_groups import Kind

ALIGNMENT = 16
"""Bytes of the widest access (G5): groups and chunks begin at multiples of it."""
DEFAULT_TOKENS = 256
SCHEMA_VERSION = 1

ITEM_BYTES = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2,
    "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1, "bool": 1,
}  # fmt: skip
"""Element types that pages are made of, called as torch calls them -> bytes."""


class LayoutError(ValueError):
    """Layers, a layout or sizes do not fit together; the message has both sizes."""


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Common geometry of the layers of one group in a chunk (G1)."""

    names: tuple[str, ...]
    """Names of the tensors, in order of first appearance."""
    dtype: str
    heads: int
    width: int
    """Elements of one head, of K or of V; of a row that has no heads; of a row of a state."""
    kv: int = 1
    """2: a tensor has a plane for K and one for V."""
    kind: Kind = "full"
    size: int = 0
    """Tokens of the window or of the chunk that attention sees."""
    block: int = 1
    """Tokens of a block; of a state, of the interval at whose multiples it may be stored."""
    rows: int = 1
    """Ids that one state takes."""
    entry: int = 1
    """Tokens for which there is one row, a divisor of `block` (Q1, Q4)."""
    format: str = ""
    """Identity of the declared format of the bytes (`kernels.page_formats`): name, version, digest.
    Empty: plain elements of `dtype`."""

    @property
    def row_bytes(self) -> int:
        """One token in one plane, or one row of a state."""
        return self.heads * self.width * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, kw_only=True)
class ChunkGroup:
    """One group in a chunk: bytes [offset, offset + nbytes)."""

    geometry: Geometry
    offset: int
    nbytes: int
    shape: tuple[int, ...]
    """[planes of K and V, layers, tokens, heads, width]; for tokens, states have rows."""
    strides: tuple[int, ...]
    """In bytes."""
    blocks: int
    """Blocks of a chunk that are stored: the last ones. Of a state, its rows."""

    @property
    def tokens(self) -> int:
        """Tokens that are stored, or rows of a state."""
        return self.shape[2]

    @property
    def dtype(self) -> str:
        """The element type, called as torch calls it."""
        return self.geometry.dtype


@dataclass(frozen=True, kw_only=True)
class ChunkLayout:
    """Where every group lies in a chunk (G2)."""

    schema: int = SCHEMA_VERSION
    tokens: int
    groups: tuple[ChunkGroup, ...]
    nbytes: int
    """Bytes of a chunk; a multiple of 16, so that the next one is aligned too."""

    @classmethod
    def of(cls, geometries: Sequence[Geometry], *, tokens: int = DEFAULT_TOKENS) -> ChunkLayout:
        """Lay groups one after the other. Raises LayoutError if blocks do not fill the chunk."""
        offset, groups = 0, []
        for index, geometry in enumerate(geometries):
            _check(index, geometry, tokens)
            groups.append(_placed(geometry, tokens, offset))
            offset += _aligned(groups[-1].nbytes)
        if not groups:
            raise LayoutError("a chunk of 0 groups holds nothing: expected at least 1")
        return cls(tokens=tokens, groups=tuple(groups), nbytes=offset)

    def group(self, index: int) -> ChunkGroup:
        """Return a group. Raises LayoutError with the existing names."""
        if not 0 <= index < len(self.groups):
            known = "; ".join(f"{n}: {_named(each)}" for n, each in enumerate(self.groups))
            raise LayoutError(f"group {index} of {len(self.groups)}; the groups are {known}")
        return self.groups[index]

    @property
    def heads(self) -> list[int]:
        """Heads of each group; 1 where a row has none."""
        return [group.geometry.heads for group in self.groups]

    @property
    def hidden_sizes(self) -> list[int]:
        """Elements of a row, all heads together, of each group."""
        return [group.geometry.heads * group.geometry.width for group in self.groups]

    @cached_property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Bytes [start, end) between groups; zeros in every stored chunk."""
        ends = [group.offset + group.nbytes for group in self.groups]
        starts = [*(group.offset for group in self.groups[1:]), self.nbytes]
        return tuple(gap for gap in zip(ends, starts, strict=True) if gap[0] < gap[1])

    def to_json(self) -> bytes:
        """Return the layout as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def from_json(cls, text: bytes) -> ChunkLayout:
        """Read a layout. Raises LayoutError if it is none or contradicts itself."""
        try:
            found = msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise LayoutError(f"this is no chunk layout: {error}") from error
        if found.schema != SCHEMA_VERSION:
            raise LayoutError(f"schema {found.schema} of a chunk layout, expected {SCHEMA_VERSION}")
        made = cls.of([group.geometry for group in found.groups], tokens=found.tokens)
        if made != found:
            raise LayoutError(
                f"the layout says {found.nbytes} bytes at offsets {_offsets(found)}; its groups "
                f"take {made.nbytes} bytes at offsets {_offsets(made)}"
            )
        return found

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the layout in a canonical form: equal layouts, equal bytes (H6)."""
        plain = msgspec.to_builtins(self)
        for group in plain["groups"]:
            if not group["geometry"]["format"]:
                del group["geometry"]["format"]  # as before there were formats
            if group["geometry"]["entry"] == 1:
                del group["geometry"]["entry"]  # as before there were compressed groups
        return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()

    def describe(self) -> str:
        """Return a table of the groups, with heads and hidden sizes as lists."""
        head = ("group", "kind", "tensors", "dtype", "shape", "strides", "offset", "bytes")
        rows = [head, *(_row(index, group) for index, group in enumerate(self.groups))]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join(
            [
                f"chunk of {self.tokens} tokens: {self.nbytes:,} bytes in "
                f"{len(self.groups)} group{'s' * (len(self.groups) > 1)}",
                *lines,
                f"heads {self.heads}, hidden sizes {self.hidden_sizes}",
            ]
        )


def _check(index: int, geometry: Geometry, tokens: int) -> None:
    if geometry.dtype not in ITEM_BYTES:
        known = ", ".join(ITEM_BYTES)
        raise LayoutError(f"group {index} has dtype {geometry.dtype!r}, expected one of {known}")
    counts = (geometry.heads, geometry.width, geometry.kv, geometry.block, geometry.rows, tokens)
    if min(counts) < 1 or not geometry.names:
        raise LayoutError(f"group {index} has a size below 1: {geometry}, chunks of {tokens}")
    if geometry.kind in ("window", "chunk") and geometry.size < 1:
        raise LayoutError(
            f"group {index} ({geometry.names[0]}) has a {geometry.kind} of {geometry.size} tokens; "
            "give its size, at least 1, or a chunk would hold nothing of it"
        )
    if geometry.entry < 1 or geometry.block % geometry.entry:
        raise LayoutError(
            f"blocks of {geometry.block} tokens are no whole number of entries of {geometry.entry} "
            f"tokens, which group {index} ({geometry.names[0]}) has"
        )
    if tokens % geometry.block:
        raise LayoutError(
            f"chunks of {tokens} tokens are no whole number of blocks of {geometry.block} tokens, "
            f"which group {index} ({geometry.names[0]}) has"
        )


def _placed(geometry: Geometry, tokens: int, offset: int) -> ChunkGroup:
    blocks = stored_blocks(geometry, tokens)
    stored = blocks if geometry.kind == "state" else blocks * geometry.block // geometry.entry
    shape = (geometry.kv, len(geometry.names), stored, geometry.heads, geometry.width)
    steps = [ITEM_BYTES[geometry.dtype]]
    for size in reversed(shape[1:]):
        steps.insert(0, steps[0] * size)
    nbytes = prod(shape) * ITEM_BYTES[geometry.dtype]
    return ChunkGroup(
        geometry=geometry, offset=offset, nbytes=nbytes, shape=shape, strides=tuple(steps),
        blocks=blocks,
    )  # fmt: skip


def stored_blocks(geometry: Geometry, tokens: int) -> int:
    """Return how many blocks of a chunk a later request may need, counted from its end (G10).

    Hits end where chunks end. Full attention needs all blocks, a window its last tokens, a chunk
    those since its border, a state its rows.
    """
    if geometry.kind == "state":
        return geometry.rows
    whole = tokens // geometry.block
    if geometry.kind == "full":
        return whole
    longest = 0
    for end in _ends(geometry, tokens):
        start = first_needed(geometry, end) // geometry.block
        longest = max(longest, end // geometry.block - start)
        if longest >= whole:
            return whole
    return longest


def _ends(geometry: Geometry, tokens: int) -> range:
    """Ends of chunks that cover every distance to the needed tokens."""
    if geometry.kind == "window":
        far = -(-geometry.size // tokens) * tokens
        return range(far, far + 1)
    return range(tokens, lcm(tokens, geometry.size) + 1, tokens)


def first_needed(geometry: Geometry, length: int) -> int:
    """Return the first token that computing position `length` sees (X1); of a state, the last."""
    if geometry.kind == "window":
        return max(0, length - geometry.size + 1)
    if geometry.kind == "chunk":
        return length // geometry.size * geometry.size
    return 0 if geometry.kind == "full" else max(0, length - 1)


def differing_formats(mine: ChunkLayout, other: ChunkLayout) -> str:
    """Return the first formats of groups that differ, for a message; empty if none does."""
    for index, (one, two) in enumerate(zip(mine.groups, other.groups, strict=False)):
        ours, theirs = one.geometry.format or "no format", two.geometry.format or "no format"
        if ours != theirs:
            return f"; group {index} is {theirs} there and {ours} here"
    return ""


def byte_ranges(layout: ChunkLayout, groups: Sequence[int]) -> list[tuple[int, int]]:
    """Return the bytes of these groups, those of neighbours as one range (G4)."""
    found: list[tuple[int, int]] = []
    for index in groups:
        group = layout.groups[index]
        near = found and _aligned(found[-1][1]) == group.offset
        start = found.pop()[0] if near else group.offset
        found.append((start, group.offset + group.nbytes))
    return found


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _offsets(layout: ChunkLayout) -> list[int]:
    return [group.offset for group in layout.groups]


def _named(group: ChunkGroup) -> str:
    first, *others = group.geometry.names
    return f"{first} and {len(others)} more" if others else first


def _row(index: int, group: ChunkGroup) -> tuple[str, ...]:
    seen = f" of {group.geometry.size}" if group.geometry.size else ""
    return (
        str(index), group.geometry.kind + seen, _named(group), group.dtype, str(list(group.shape)),
        str(list(group.strides)), f"{group.offset:,}", f"{group.nbytes:,}",
    )  # fmt: skip
