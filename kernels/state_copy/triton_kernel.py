"""Copies rows of many pools to other rows of the same pools."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda


@triton.constexpr_function
def _integer(size):
    return tl.core.get_int_dtype(size * 8, True)


@triton.jit(do_not_specialize=["count"])
def copy_rows(
    tiles,
    sources,
    destinations,
    count: tl.int32,
    WORD: tl.constexpr,
    TILE: tl.constexpr,
    LOADS: tl.constexpr,
    STORES: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: one tile of the row of one pair; `tiles` programs of a pair are neighbours.

    `tiles` holds [count, 3] int64: address of the tile in row 0, bytes from row to row, and how
    many words the tile has, at most `TILE`. A pair with a row below 1 is padding.
    """
    if PDL:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
    pair = tl.program_id(0) // count
    tile = tiles + (tl.program_id(0) - pair * count) * 3
    source = tl.load(sources + pair).to(tl.int64)
    destination = tl.load(destinations + pair).to(tl.int64)
    address = tl.load(tile)
    stride = tl.load(tile + 1)
    words = tl.load(tile + 2)
    SIZE: tl.constexpr = min(WORD, 8)
    # The hints must sit on the cast to the final type, or they are lost and accesses are narrow.
    element: tl.constexpr = tl.pointer_type(_integer(SIZE))
    reads = tl.multiple_of((address + source * stride).to(element), WORD)
    writes = tl.multiple_of((address + destination * stride).to(element), WORD)
    word = tl.arange(0, TILE)[:, None]
    lane = tl.arange(0, WORD // SIZE)[None, :]
    mask = (word < words) & (source > 0) & (destination > 0)
    offset = word * (WORD // SIZE) + lane
    bits = tl.load(reads + offset, mask=mask, eviction_policy=LOADS)
    tl.store(writes + offset, bits, mask=mask, eviction_policy=STORES)
