"""Blocks to and from flat objects, both in host memory: runs of bytes.

An object is traversed in its own order, so its side is always contiguous; the pages are a flat
array of equal units, addressed by a list of indices. One numpy call then moves all units of a
plane, with one `memcpy` each and without the interpreter's lock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from kvproof.kernels.block_transfer.layouts import HEADS, LAYOUTS, TOKENS, PagedLayers

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

SHORT_UNIT = 64
"""Below this many bytes a list of units costs more than one slice per block."""


class Stretch(NamedTuple):
    """Consecutive tokens of one object in blocks without a hole."""

    first_block: int
    blocks: int
    low: int
    """First token, relative to the first block."""
    high: int
    """Last token + 1, relative to the last block."""


class Moves(NamedTuple):
    """Units of pages, in their order in an object from byte `start` on."""

    unit: int
    start: int
    units: Array


def copy_in_host_memory(
    direction: str,
    paged: PagedLayers,
    block_ids: Sequence[Sequence[int]],
    objects: Sequence[torch.Tensor],
    *,
    skip_tokens: int = 0,
) -> None:
    """Copy checked arguments, those of `gather` and `scatter`.

    `objects`: tensors [kv, layers, tokens, row bytes], each contiguous, all of one shape.
    """
    for index, (ids, each) in enumerate(zip(block_ids, objects, strict=True)):
        tokens = each.shape[2]
        planes = each.view(torch.uint8).view(paged.planes, -1).numpy()
        for stretch in _stretches(ids, paged.page, tokens, skip_tokens - index * tokens):
            for moves in _moves(paged, ids, stretch):
                _copy(direction, paged, moves, planes)


def _stretches(ids: Sequence[int], page: int, tokens: int, skip: int) -> Iterator[Stretch]:
    """Split an object at holes; the tokens before `skip` belong to no stretch."""
    skip = max(0, skip)
    block, count = skip // page, len(ids)
    while block < count and skip < tokens:
        if ids[block] < 1:
            block += 1
            continue
        first = block
        while block < count and ids[block] > 0:
            block += 1
        low = max(0, skip - first * page)
        high = min(page, tokens - (block - 1) * page)
        yield Stretch(first, block - first, low, high)


def _moves(paged: PagedLayers, ids: Sequence[int], stretch: Stretch) -> Iterator[Moves]:
    page, row = paged.page, paged.row_bytes
    first, last = stretch.first_block, stretch.first_block + stretch.blocks - 1
    cuts = [(first, first + 1, stretch.low, stretch.high if first == last else page)]
    if first != last:
        cuts += [(first + 1, last, 0, page), (last, last + 1, 0, stretch.high)]
    for start, stop, low, high in _joined(cuts, page):
        unit, pattern = _pattern(_Order.of(paged), low, high)
        chosen = np.array(ids[start:stop], np.intp)
        units = (chosen[:, None] * (paged.page_stride // unit) + pattern).ravel()
        yield Moves(unit, (start * page + low) * row, units)


def _joined(cuts: list[tuple[int, int, int, int]], page: int) -> list[tuple[int, int, int, int]]:
    found: list[tuple[int, int, int, int]] = []
    for start, stop, low, high in cuts:
        whole = (low, high) == (0, page)
        if found and whole and found[-1][2:] == (0, page):
            start = found.pop()[0]
        if start < stop and low < high:
            found.append((start, stop, low, high))
    return found


class _Order(NamedTuple):
    """Parameters that determine the position of a block's bytes."""

    order: int
    page: int
    heads: int
    head: int
    tail: int
    stride: int

    @classmethod
    def of(cls, paged: PagedLayers) -> _Order:
        return cls(
            paged.order, paged.page, paged.heads, paged.head_bytes, paged.scale_bytes,
            paged.page_stride,
        )  # fmt: skip


@lru_cache(maxsize=1024)
def _pattern(of: _Order, low: int, high: int) -> tuple[int, Array]:
    """The unit, and the units of the tokens [low, high) of a block in the order of an object."""
    row = of.heads * of.head + of.tail
    if of.order == TOKENS:
        unit = math.gcd(row * low, row * high, of.stride)
        return unit, np.arange(row * low // unit, row * high // unit)
    token = np.arange(low, high)[:, None]
    unit = math.gcd(of.head, of.tail, of.stride)
    if of.order == HEADS:
        starts = (np.arange(of.heads)[None, :] * of.page + token) * of.head
        return unit, _runs(starts, of.head, unit).ravel()
    values = _runs(token * of.head, of.head, unit)
    scales = _runs(of.page * of.head + token * of.tail, of.tail, unit)
    return unit, np.concatenate([values, scales], axis=-1).ravel()


def _runs(starts: Array, length: int, unit: int) -> Array:
    return starts[..., None] // unit + np.arange(length // unit)


def _copy(direction: str, paged: PagedLayers, moves: Moves, planes: Array) -> None:
    if moves.unit < SHORT_UNIT and paged.order == TOKENS:
        _copy_slices(direction, paged, moves, planes)
        return
    there = paged_units(paged, moves.unit)
    size = moves.unit * len(moves.units)
    here = planes[:, moves.start : moves.start + size]
    for pages, rows in zip(there, here, strict=True):
        flat = rows.view(pages.dtype)
        if direction == "gather":
            np.take(pages, moves.units, out=flat, mode="clip")  # indices are in range: no buffer
        else:
            np.put(pages, moves.units, flat, mode="clip")


def _copy_slices(direction: str, paged: PagedLayers, moves: Moves, planes: Array) -> None:
    """Copy one slice per block, if strides would reduce units to a few bytes."""
    ends = np.flatnonzero(np.diff(moves.units) != 1) + 1
    for pages, rows in zip(paged_units(paged, 1), planes, strict=True):
        at = moves.start
        for run in np.split(moves.units, ends):
            low, size = int(run[0]) * moves.unit, len(run) * moves.unit
            here, there = rows[at : at + size], pages[low : low + size].view(np.uint8)
            target, source = (here, there) if direction == "gather" else (there, here)
            target[:] = source
            at += size


def paged_units(paged: PagedLayers, unit: int) -> list[Array]:
    """Each plane from its page 0 on, as an array of units of this many bytes."""
    if unit not in paged.units:
        whole = (paged.pages - 1) * paged.page_stride + paged.block_bytes
        size = whole // unit * unit  # the remainder is never asked for
        paged.units[unit] = [plane[:size].view(f"V{unit}") for plane in _planes(paged)]
    return paged.units[unit]


def _planes(paged: PagedLayers) -> Iterator[Array]:
    """The bytes from page 0 of each plane to the end of the layer, in the order of `table`."""
    dims = LAYOUTS[paged.layout].dims
    for plane in range(paged.kv):
        for layer in paged.layers:
            part = layer.select(dims.index("kv"), plane) if "kv" in dims else layer
            start = part.storage_offset() * part.element_size()
            yield torch.tensor([], dtype=torch.uint8).set_(part.untyped_storage())[start:].numpy()
