"""The place of every byte of every token, in pages and in chunks, by axis names (G2-G6, G10).

Written apart from the code under test: a cache numbers its bytes, names the axes of that array and
turns it to [kv, pages, page, row]; a chunk is counted with multiplications. Copies are then
assignments between lists of byte numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import lcm
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Index: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]

AXES = {
    "nhd": "pages page heads bytes",
    "hnd": "pages heads page bytes",
    "kv-nhd": "kv pages page heads bytes",
    "kv-hnd": "kv pages heads page bytes",
    "page-kv-nhd": "pages kv page heads bytes",
    "page-kv-hnd": "pages kv heads page bytes",
    "latent": "pages page bytes",
    "indexer": "pages page bytes",
    "state": "pages bytes",
}
"""Axis names of a layout, outermost first."""
NUMBERS = {name: tuple(axes.split()) for name, axes in AXES.items()}
POISON = 0xAB


class Cache(NamedTuple):
    """One tensor. Bytes of `head` are those of one head, or of a row without heads."""

    name: str
    layer: str
    layout: str
    kind: str
    size: int
    table: int
    blocks: int
    ratio: int
    page: int
    heads: int
    head: int
    item: int
    """Bytes of one element."""
    pad: int
    """Bytes after each page, those of other layers among them."""
    scales: int = 0
    buffer: str = ""
    """Memory that it shares with other layers, whose pages lie between its own; empty: its own."""
    offset: int = 0
    """Bytes before its first page."""

    @property
    def memory(self) -> str:
        """The memory that holds it."""
        return self.buffer or self.name

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the axes, in bytes."""
        return {
            "kv": 2, "pages": self.blocks * self.ratio, "page": self.page, "heads": self.heads,
            "bytes": self.head,
        }  # fmt: skip

    @property
    def shape(self) -> list[int]:
        """Sizes in the order of the layout; the last one in bytes."""
        return [self.sizes[axis] for axis in NUMBERS[self.layout]]

    @property
    def strides(self) -> list[int]:
        """In bytes; after each page lie `pad` bytes."""
        steps: list[int] = []
        step = 1
        for axis in reversed(NUMBERS[self.layout]):
            step += self.pad if axis == "pages" else 0
            steps.insert(0, step)
            step *= self.sizes[axis]
        return steps

    @property
    def nbytes(self) -> int:
        """Of the whole memory, gaps included."""
        return self.shape[0] * self.strides[0]

    @property
    def block(self) -> int:
        """Tokens of a block; ids of a state stand for no tokens."""
        return self.ratio * self.page

    @property
    def row(self) -> int:
        """Bytes of one token in one plane."""
        return self.head * (self.heads if "heads" in NUMBERS[self.layout] else 1)

    @property
    def kv(self) -> int:
        """Planes."""
        return 2 if "kv" in NUMBERS[self.layout] else 1

    def places(self) -> Index:
        """Return the number of every byte, [kv, pages, page, row]."""
        numbers = np.arange(self.offset, self.offset + self.nbytes)
        view = np.lib.stride_tricks.as_strided(
            numbers, self.shape, [step * numbers.itemsize for step in self.strides]
        )
        axes = NUMBERS[self.layout]
        wanted = [axis for axis in ("kv", "pages", "page", "heads", "bytes") if axis in axes]
        turned = view.transpose([axes.index(axis) for axis in wanted])
        pages = self.blocks * self.ratio
        if self.layout == "indexer":
            return self._packed(turned.reshape(pages, -1))
        return turned.reshape(self.kv, pages, self.page, self.row)

    def _packed(self, pages: Index) -> Index:
        """Values of all tokens, then scales of all tokens."""
        border = self.page * (self.head - self.scales)
        values = pages[:, :border].reshape(len(pages), self.page, -1)
        scales = pages[:, border:].reshape(len(pages), self.page, -1)
        return np.concatenate([values, scales], axis=2)[None]


def ids_of_chunk(cache: Cache, tokens: int) -> int:
    """Number of ids in a chunk."""
    return 1 if cache.kind == "state" else tokens // cache.block


def kept(cache: Cache, tokens: int) -> int:
    """Number of last ids of a chunk that some hit needs: counted token by token."""
    if cache.kind in ("full", "state"):
        return ids_of_chunk(cache, tokens)
    ends = range(tokens, 2 * lcm(tokens, cache.size) + tokens + 1, tokens)
    return max(len(_blocks_needed(cache, end - tokens, end)) for end in ends)


def _blocks_needed(cache: Cache, start: int, end: int) -> set[int]:
    """Blocks between two tokens that the token `end` reads."""
    if cache.kind == "window":
        seen = [token for token in range(start, end) if end - token < cache.size]
    elif cache.kind == "chunk":
        seen = [token for token in range(start, end) if token // cache.size == end // cache.size]
    else:
        seen = list(range(start, end))
    return {token // cache.block for token in seen}


def needed(cache: Cache, tokens: int, chunk: int, length: int) -> list[int]:
    """Positions of ids in a chunk that a hit of `length` tokens needs."""
    start, stop = chunk * tokens, (chunk + 1) * tokens
    if cache.kind == "state":
        return [0] if stop == length else []
    far = _blocks_needed(cache, start, length) if length > start else set()
    return sorted(at - start // cache.block for at in far if at < stop // cache.block)


class Move(NamedTuple):
    """The work of one call on one cache and chunk: places on both sides, byte for byte."""

    pages: Index
    chunk: Index
    skipped_pages: Index
    skipped_chunk: Index
    left_pages: Index
    left_chunk: Index
    """Bytes of blocks that are null, not valid or not stored; wanted ones too, of pages."""


class Slot(NamedTuple):
    """Place of a cache in a chunk."""

    offset: int
    layers: int
    layer: int


@lru_cache(maxsize=256)
def object_places(cache: Cache, slot: Slot, count: int) -> Index:
    """Return the number of every byte of a cache in a chunk, [kv, tokens, row]."""
    sizes = (cache.kv, count, cache.row)
    plane, token, byte = np.ix_(*(np.arange(size) for size in sizes))
    return slot.offset + ((plane * slot.layers + slot.layer) * count + token) * cache.row + byte


def move(
    cache: Cache,
    places: Index,
    slot: Slot,
    ids: Sequence[int],
    *,
    tokens: int,
    chunk: int,
    skip: int,
    valid: Sequence[int] | None,
) -> Move:
    """Return the bytes that move between the pages and one chunk, and those that stay.

    `ids` are those of the chunk; `valid` the positions among them that may move.
    """
    stored = kept(cache, tokens)
    first = len(ids) - stored
    at = object_places(cache, slot, stored * cache.block)
    token = np.arange(stored * cache.block)
    position, inside = first + token // cache.block, token % cache.block
    named = [ids[at] if valid is None or at in valid else 0 for at in range(len(ids))]
    block = np.array([*named, 0])[position]
    page, line = block * cache.ratio + inside // cache.page, inside % cache.page
    absolute = chunk * tokens + position * cache.block + inside
    if cache.kind == "state":
        absolute = np.full(len(token), (chunk + 1) * tokens - 1)
    present = block > 0
    wanted = present & (absolute >= skip)
    there = places[:, page, line]
    resting = present & ~wanted
    return Move(
        there[:, wanted].ravel(),
        at[:, wanted].ravel(),
        there[:, resting].ravel(),
        at[:, resting].ravel(),
        places[:, _pages(cache, ids)].ravel(),
        at[:, ~present].ravel(),
    )


def _pages(cache: Cache, ids: Sequence[int]) -> list[int]:
    every = range(cache.ratio)
    return [block * cache.ratio + page for block in ids for page in every if block]


def poisoned(nbytes: int) -> Bytes:
    """Return memory without written bytes."""
    return np.full(nbytes, POISON, np.uint8)
