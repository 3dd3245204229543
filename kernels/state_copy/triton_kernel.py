"""Copies rows of many pools to other rows of the same pools."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.constexpr_function
def _integer(size):
    return tl.core.get_int_dtype(size * 8, signed=True)


# Addresses and counts that happen to be 1 or a multiple of 16 must not compile the kernel again.
@triton.jit(do_not_specialize=["tiles", "sources", "destinations", "count", "pairs"])
def copy_rows(
    tiles,
    sources,
    destinations,
    count: tl.int32,
    pairs: tl.int32,
    WORD: tl.constexpr,
    TILE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One program: every n-th of the `count` tiles of each pair; a pair's are neighbours.

    `tiles` holds [count, 3] int64: address of the tile in row 0, row stride in bytes, and words of
    the tile, at most `TILE`. A pair with a row below 1 is padding: it costs a read of the lists, no
    program.
    """
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    SIZE: tl.constexpr = min(WORD, 8)
    element: tl.constexpr = tl.pointer_type(_integer(SIZE))
    word = tl.arange(0, TILE)[:, None]
    offset = word * (WORD // SIZE) + tl.arange(0, WORD // SIZE)[None, :]
    for index in tl.range(tl.program_id(0), count * pairs, tl.num_programs(0)):
        pair = index // count
        source = tl.load(sources + pair).to(tl.int64)
        destination = tl.load(destinations + pair).to(tl.int64)
        if (source > 0) & (destination > 0):
            tile = tiles + (index - pair * count) * 3
            address = tl.load(tile)
            stride = tl.load(tile + 1)
            mask = word < tl.load(tile + 2)
            # The hints must sit on the cast to the final type, or they are lost and accesses are
            # narrow.
            reads = tl.multiple_of((address + source * stride).to(element), WORD)
            writes = tl.multiple_of((address + destination * stride).to(element), WORD)
            bits = tl.load(reads + offset, mask=mask)
            tl.store(writes + offset, bits, mask=mask)
