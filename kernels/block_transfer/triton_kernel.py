"""Moves the bytes of many blocks, of all layers, between their pages and flat objects.

The destination is traversed in its own order, in units of up to 16 bytes, so that every store is
wide; a unit is composed of words of the source, as wide as the source allows. A program moves a
tile of units of one plane (object, K or V, layer); tiles are independent of pages.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

TOKEN_MAJOR = tl.constexpr(0)
"""A page holds whole rows, as in the object."""
HEAD_MAJOR = tl.constexpr(1)
"""A page holds one head of all its tokens, then the next head."""
SPLIT = tl.constexpr(2)
"""A page holds the values of all its tokens, then their scales (`TAIL`)."""


@triton.constexpr_function
def _integer(size):
    return tl.core.get_int_dtype(size * 8, signed=True)


@triton.jit
def _other_row(row, GATHER: tl.constexpr, PAGE: tl.constexpr, HEADS: tl.constexpr):
    """Row in the source of a head-major block for `row` of the target."""
    if GATHER:
        token = row // HEADS
        return (row - token * HEADS) * PAGE + token
    head = row // PAGE
    return (row - head * PAGE) * HEADS + head


@triton.jit
def _in_page(
    y,
    ORDER: tl.constexpr,
    PAGE: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
):
    """Offset in the page of word `y` of the block in an object."""
    if ORDER == TOKEN_MAJOR:
        return y
    ROW: tl.constexpr = HEADS * HEAD + TAIL
    token = y // ROW
    rest = y - token * ROW
    if ORDER == HEAD_MAJOR:
        head = rest // HEAD
        return (head * PAGE + token) * HEAD + rest - head * HEAD
    scale = PAGE * HEAD + token * TAIL + rest - HEAD
    return tl.where(rest < HEAD, token * HEAD + rest, scale)


@triton.jit
def _in_object(
    y,
    ORDER: tl.constexpr,
    PAGE: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
):
    """Offset in the object's block of word `y` of the page."""
    if ORDER == TOKEN_MAJOR:
        return y
    ROW: tl.constexpr = HEADS * HEAD + TAIL
    if ORDER == HEAD_MAJOR:
        row = y // HEAD
        head = row // PAGE
        return (row - head * PAGE) * ROW + head * HEAD + y - row * HEAD
    tail = y - PAGE * HEAD
    value = y // HEAD * ROW + y % HEAD
    return tl.where(tail < 0, value, tail // TAIL * ROW + HEAD + tail % TAIL)


@triton.jit
def _copy(
    unit,
    page,
    valid,
    pages,
    objects,
    page_stride,
    first,
    last,
    GATHER: tl.constexpr,
    ORDER: tl.constexpr,
    PAGE: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
    UNIT: tl.constexpr,
    WORD: tl.constexpr,
    PARTIAL: tl.constexpr,
):
    """Copy units of one plane, at the addresses `pages` and `objects`.

    With `PARTIAL` only the tokens in [first, last) are copied, byte by byte (`WORD` is 1), because
    a unit may hold bytes of several tokens.
    """
    ELEMENT: tl.constexpr = min(WORD, 8)
    LANES: tl.constexpr = UNIT // ELEMENT
    WORDS: tl.constexpr = UNIT // WORD
    BLOCK: tl.constexpr = PAGE * (HEADS * HEAD + TAIL) // UNIT
    block = unit // BLOCK
    begin = (unit - block * BLOCK) * WORDS
    column = tl.arange(0, WORDS)[None, :]
    y = begin[:, None] + column
    mask = valid[:, None]
    if GATHER:
        word = _in_page(y, ORDER, PAGE, HEADS, HEAD // WORD, TAIL // WORD)
    else:
        word = _in_object(y, ORDER, PAGE, HEADS, HEAD // WORD, TAIL // WORD)
    if GATHER:
        source = page.to(tl.int64)[:, None] * (page_stride // WORD) + word
        target = unit
        byte = y
        reads, writes = pages, objects
    else:
        source = (block * (BLOCK * WORDS))[:, None] + word
        target = page.to(tl.int64) * (page_stride // UNIT) + unit - block * BLOCK
        byte = word
        reads, writes = objects, pages
    if PARTIAL:
        token = (block * PAGE)[:, None] + byte // (HEADS * HEAD + TAIL)
        mask = mask & (token >= first) & (token < last)
    lane = tl.arange(0, LANES)[None, :]
    if WORD > ELEMENT:
        source = source * (WORD // ELEMENT) + lane
    # The hints must sit on the cast to the final type, or they are lost and accesses are narrow.
    element: tl.constexpr = tl.pointer_type(_integer(ELEMENT))
    reads = tl.multiple_of(reads.to(element), WORD)
    writes = tl.multiple_of(writes.to(element), UNIT)
    bits = tl.load(reads + source, mask=mask)
    tl.store(writes + target[:, None] * LANES + lane, bits, mask=mask)


@triton.jit
def _join_bytes(a, b, count):
    bits = tl.minimum(tl.maximum(count, 0), 7) * 8
    low = (tl.full(count.shape, 1, tl.uint64) << bits.to(tl.uint64)) - 1
    return tl.where(count >= 8, a, b ^ ((a ^ b) & low))


@triton.jit
def _read_unit(base, offset, low, high, mask):
    """Read 16 bytes at any address, as two integers: bytes [low, high) of `base + offset`.

    They come from two aligned words of 16 bytes; a word outside of the range is not read.
    """
    start = base & -16
    offset = offset + (base - start)
    shift = (offset & 15).to(tl.int32)
    # The hint must sit on the cast to the final type, or it is lost and accesses are narrow.
    words = tl.multiple_of(start.to(tl.pointer_type(tl.uint64)), 16)
    at = words + (offset >> 4)[:, None] * 2 + tl.arange(0, 2)[None, :]
    first = mask & (shift + low < 16)
    second = mask & (shift + high > 16)
    a, b = tl.split(tl.load(at, mask=first[:, None], other=0))
    c, d = tl.split(tl.load(at + 2, mask=second[:, None], other=0))
    far = shift >= 8
    x, y, z = tl.where(far, b, a), tl.where(far, c, b), tl.where(far, d, c)
    bits = ((shift & 7) * 8).to(tl.uint64)
    # In two steps, because a shift by 64 is not defined.
    return (x >> bits) | (y << 1 << (63 - bits)), (y >> bits) | (z << 1 << (63 - bits))


@triton.jit
def _copy_shifted(
    unit,
    page,
    valid,
    pages,
    objects,
    page_stride,
    GATHER: tl.constexpr,
    ORDER: tl.constexpr,
    PAGE: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
):
    """Copy units of 16 bytes at any alignment of the source, in two rows at most."""
    BLOCK: tl.constexpr = PAGE * HEADS * HEAD // 16
    block = unit // BLOCK
    begin = (unit - block * BLOCK) * 16
    if GATHER:
        reads, writes = pages, objects
        source = page.to(tl.int64) * page_stride
        target = unit.to(tl.int64)
    else:
        reads, writes = objects, pages
        source = block.to(tl.int64) * (BLOCK * 16)
        target = page.to(tl.int64) * (page_stride // 16) + unit - block * BLOCK
    if ORDER == TOKEN_MAJOR:
        low, high = _read_unit(reads, source + begin, 0, 16, valid)
    else:
        row = begin // HEAD
        left = row * HEAD + HEAD - begin
        here = _other_row(row, GATHER, PAGE, HEADS) * HEAD + HEAD - left
        after = _other_row(row + 1, GATHER, PAGE, HEADS) * HEAD - left
        low, high = _read_unit(reads, source + here, 0, tl.minimum(left, 16), valid)
        low_after, high_after = _read_unit(reads, source + after, left, 16, valid & (left < 16))
        low = _join_bytes(low, low_after, left)
        high = _join_bytes(high, high_after, left - 8)
    writes = tl.multiple_of(writes.to(tl.pointer_type(tl.uint64)), 16)
    at = writes + target[:, None] * 2 + tl.arange(0, 2)[None, :]
    tl.store(at, tl.join(low, high), mask=valid[:, None])


@triton.jit
def _copy_cut(
    block,
    start,
    end,
    ids,
    pages,
    objects,
    page_stride,
    first,
    last,
    GATHER: tl.constexpr,
    ORDER: tl.constexpr,
    PAGE: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
    UNIT: tl.constexpr,
    TILE: tl.constexpr,
):
    """Copy the tokens in [first, last) of one block, limited to units in [start, end)."""
    BLOCK: tl.constexpr = PAGE * (HEADS * HEAD + TAIL) // UNIT
    STEP: tl.constexpr = min(TILE, 1024 // UNIT)
    low = tl.maximum(block * BLOCK, start)
    high = tl.minimum(block * BLOCK + BLOCK, end)
    # Bounds known to the compiler: the interpreter cannot count to a tensor.
    for step in range(0, min(TILE, BLOCK), STEP):
        unit = low + step + tl.arange(0, STEP)
        page = tl.load(ids + unit // BLOCK, mask=unit < high, other=0)
        _copy(
            unit, page, (unit < high) & (page > 0), pages, objects, page_stride, first, last,
            GATHER, ORDER, PAGE, HEADS, HEAD, TAIL, UNIT, 1,
            PARTIAL=True,
        )  # fmt: skip


# Addresses, counts and strides change from call to call: those that happen to be 1 or a multiple of
# 16 must not compile the kernel again. The alignment that matters is in UNIT and WORD.
@triton.jit(do_not_specialize=range(13))
def transfer(
    table,
    ids,
    objects,
    origin: tl.int64,
    object_stride: tl.int64,
    page_stride: tl.int64,
    first_plane: tl.int32,
    planes: tl.int32,
    tiles: tl.int32,
    span: tl.int32,
    blocks: tl.int32,
    tokens: tl.int32,
    skip: tl.int32,
    GATHER: tl.constexpr,
    ORDER: tl.constexpr,
    PAGE: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
    UNIT: tl.constexpr,
    WORD: tl.constexpr,
    TILE: tl.constexpr,
    SHIFTED: tl.constexpr,
    EDGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One program: `span` units, at most `TILE`, of one plane of one object.

    `table` holds the address of each plane, `ids` a row of pages per object; ids below 1 are holes.
    `objects` starts at byte `origin` of the objects and strides are in bytes, so that a buffer may
    hold a part of them. `SHIFTED`: units of 16 bytes from words that are not aligned. `EDGES`: some
    blocks are moved in part, because `skip` or `tokens` is no multiple of the page.
    """
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    ROW: tl.constexpr = HEADS * HEAD + TAIL
    BLOCK: tl.constexpr = PAGE * ROW // UNIT
    run = tl.program_id(0) // tiles
    start = (tl.program_id(0) - run * tiles) * span
    item = (first_plane + run) // planes
    plane = first_plane + run - item * planes
    first = tl.maximum(skip - item * tokens, 0)
    ids += item * blocks
    pages = tl.load(table + plane)
    part = objects.to(tl.int64) - origin + item.to(tl.int64) * object_stride
    part += plane.to(tl.int64) * tokens * ROW
    end = tl.minimum(start + span, blocks * BLOCK)

    unit = start + tl.arange(0, TILE)
    block = unit // BLOCK
    valid = (unit < end) & (block * PAGE >= first) & (block * PAGE + PAGE <= tokens)
    page = tl.load(ids + block, mask=valid, other=0)
    if SHIFTED:
        _copy_shifted(
            unit, page, valid & (page > 0), pages, part, page_stride,
            GATHER, ORDER, PAGE, HEADS, HEAD,
        )  # fmt: skip
    else:
        _copy(
            unit, page, valid & (page > 0), pages, part, page_stride, first, tokens,
            GATHER, ORDER, PAGE, HEADS, HEAD, TAIL, UNIT, WORD,
            PARTIAL=False,
        )  # fmt: skip

    if EDGES:
        # The block that `first` cuts, and the one that `tokens` cuts, unless it is the same.
        lower = first // PAGE
        upper = tokens // PAGE
        if first % PAGE != 0:
            _copy_cut(
                lower, start, end, ids, pages, part, page_stride, first, tokens,
                GATHER, ORDER, PAGE, HEADS, HEAD, TAIL, UNIT, TILE,
            )  # fmt: skip
        if (tokens % PAGE != 0) & ((first % PAGE == 0) | (lower != upper)):
            _copy_cut(
                upper, start, end, ids, pages, part, page_stride, first, tokens,
                GATHER, ORDER, PAGE, HEADS, HEAD, TAIL, UNIT, TILE,
            )  # fmt: skip
