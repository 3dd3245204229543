"""The description of a page's bytes: fields of a token, their place in the page, a version."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

BITS = {
    "bfloat16": 16, "float32": 32, "float8_e4m3": 8, "float8_e8m0": 8, "float4_e2m1": 4,
    "int8": 8, "uint4": 4, "float32 with a zero point": 32,
}  # fmt: skip
"""Number formats of fields. Of two numbers in a byte the even one is in the low nibble. `float32
with a zero point`: the low 4 bits of the word are the zero point, the others the scale."""


@dataclass(frozen=True)
class Field:
    """`count` numbers of one token, in a page of P tokens.

    Token t has them from byte `behind * P + t * stride + offset` on: `behind` is 0 in the first
    region of a page; in the second it is the number of bytes that a token has in the first.
    """

    dtype: str
    count: int
    offset: int
    stride: int
    behind: int = 0
    order: tuple[int, ...] = ()
    """Place of each number among the `count`; empty: in order."""

    @property
    def nbytes(self) -> int:
        """Of one token."""
        return self.count * BITS[self.dtype] // 8


class Part(NamedTuple):
    """Neighbouring columns of a row, with one scale for every `group` of them, or without."""

    values: Field
    scales: Field | None = None
    least: float = 0.0
    """Smallest scale that `pack` writes, as the engine's own writer does."""

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        return self.values.count // self.scales.count if self.scales else 0


@dataclass(frozen=True, kw_only=True)
class PageFormat:
    """The bytes of one token (of one KV head, if the cache has heads), in a page."""

    name: str
    version: int
    """Another place of any byte is another version."""
    parts: tuple[Part, ...]
    """In the order of the columns."""
    per_head: bool = False
    """The bytes are those of one KV head, of which a token has several."""
    alignment: int = 1
    """A page of one layer takes a multiple of so many bytes; the rest is not used."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """Values and scales of all parts."""
        both = [(part.values, part.scales) for part in self.parts]
        return tuple(field for pair in both for field in pair if field is not None)

    @property
    def regions(self) -> tuple[int, ...]:
        """Bytes of a token in each region of a page: one, or data and then scales."""
        return tuple({field.behind: field.stride for field in self.fields}.values())

    @property
    def row_bytes(self) -> int:
        """Bytes of a token."""
        return sum(self.regions)

    @property
    def columns(self) -> int:
        """Numbers of a token."""
        return sum(part.values.count for part in self.parts)

    def page_bytes(self, page: int) -> int:
        """Bytes of a page of so many tokens."""
        return -(-page * self.row_bytes // self.alignment) * self.alignment

    @property
    def identity(self) -> str:
        """Name, version and digest of the fields: equal exactly if every byte means the same."""
        digest = hashlib.sha256(repr((self.alignment, self.parts)).encode()).hexdigest()
        return f"{self.name}/{self.version} {digest[:16]}"
