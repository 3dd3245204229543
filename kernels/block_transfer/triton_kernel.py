"""Moves the bytes of many blocks, of all layers, between their pages and flat objects.

The destination is walked in its own order, in units of up to 16 bytes, so that every store is
wide; a unit is put together from words of the source, as wide as the source allows. A program
moves a tile of units of one plane (object, K or V, layer); tiles know nothing of pages.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

TOKEN_MAJOR = tl.constexpr(0)
"""A page holds whole rows, as the object does."""
HEAD_MAJOR = tl.constexpr(1)
"""A page holds one head of all its tokens, then the next head."""
SPLIT = tl.constexpr(2)
"""A page holds the values of all its tokens, then their scales (`TAIL`)."""


@triton.constexpr_function
def _integer(size):
    return tl.core.get_int_dtype(size * 8, True)


@triton.jit
def _in_page(
    y,
    ORDER: tl.constexpr,
    PAGE: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
):
    """Where in its page the word lies that is word `y` of the block in an object."""
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
    """Where in its block of an object the word lies that is word `y` of the page."""
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
    LOADS: tl.constexpr,
    STORES: tl.constexpr,
):
    """Copy units of one plane, which lies at the addresses `pages` and `objects`.

    With `PARTIAL` only the tokens in [first, last) are copied. It goes byte by byte (`WORD` is 1), because a unit may hold bytes of several tokens.
    """
    ELEMENT: tl.constexpr = min(WORD, 8)
    LANES: tl.constexpr = UNIT // ELEMENT
    WORDS: tl.constexpr = UNIT // WORD
    BLOCK: tl.constexpr = PAGE * (HEADS * HEAD + TAIL) // UNIT
    block = unit // BLOCK
    y = ((unit - block * BLOCK) * WORDS)[:, None] + tl.arange(0, WORDS)[None, :]
    mask = valid[:, None]
    if GATHER:
        word = _in_page(y, ORDER, PAGE, HEADS, HEAD // WORD, TAIL // WORD)
        source = page.to(tl.int64)[:, None] * (page_stride // WORD) + word
        target = unit
        byte = y
        reads, writes = pages, objects
    else:
        word = _in_object(y, ORDER, PAGE, HEADS, HEAD // WORD, TAIL // WORD)
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
    bits = tl.load(reads + source, mask=mask, eviction_policy=LOADS)
    tl.store(writes + target[:, None] * LANES + lane, bits, mask=mask, eviction_policy=STORES)


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
    LOADS: tl.constexpr,
    STORES: tl.constexpr,
):
    """Copy the tokens in [first, last) of one block, as far as its units lie in [start, end)."""
    BLOCK: tl.constexpr = PAGE * (HEADS * HEAD + TAIL) // UNIT
    STEP: tl.constexpr = min(TILE, 64)
    low = tl.maximum(block * BLOCK, start)
    high = tl.minimum(block * BLOCK + BLOCK, end)
    # Bounds known to the compiler: the interpreter cannot count to a tensor.
    for step in range(0, min(TILE, BLOCK), STEP):
        unit = low + step + tl.arange(0, STEP)
        page = tl.load(ids + unit // BLOCK, mask=unit < high, other=0)
        _copy(
            unit, page, (unit < high) & (page > 0), pages, objects, page_stride, first, last,
            GATHER, ORDER, PAGE, HEADS, HEAD, TAIL, UNIT, 1, True, LOADS, STORES,
        )  # fmt: skip


# Counts and strides change from call to call: values that happen to be 1 or a multiple of 16 must
# not compile the kernel again. The alignment that matters is in UNIT and WORD.
@triton.jit(do_not_specialize=range(3, 14))
def transfer(
    table,
    ids,
    objects,
    layers: tl.int32,
    tiles: tl.int32,
    span: tl.int32,
    blocks: tl.int32,
    tokens: tl.int32,
    skip: tl.int32,
    kv_stride: tl.int64,
    page_stride: tl.int64,
    object_stride: tl.int64,
    object_kv_stride: tl.int64,
    object_layer_stride: tl.int64,
    GATHER: tl.constexpr,
    ORDER: tl.constexpr,
    KV: tl.constexpr,
    PAGE: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
    UNIT: tl.constexpr,
    WORD: tl.constexpr,
    TILE: tl.constexpr,
    EDGES: tl.constexpr,
    LOADS: tl.constexpr,
    STORES: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: `span` units, at most `TILE`, of one plane.

    `table` holds the address of each layer, `ids` a row of pages per object; ids below 1 are
    holes. Strides are in bytes. `EDGES`: some blocks are moved in part, because `skip` or `tokens`
    is no multiple of the page.
    """
    if PDL:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
    BLOCK: tl.constexpr = PAGE * (HEADS * HEAD + TAIL) // UNIT
    plane = tl.program_id(0) // tiles
    start = (tl.program_id(0) - plane * tiles) * span
    layer = plane % layers
    kv = plane // layers % KV
    item = plane // layers // KV
    first = tl.maximum(skip - item * tokens, 0)
    ids += item * blocks
    pages = tl.load(table + layer) + kv.to(tl.int64) * kv_stride
    part = objects.to(tl.int64) + item.to(tl.int64) * object_stride
    part += kv.to(tl.int64) * object_kv_stride + layer.to(tl.int64) * object_layer_stride
    end = tl.minimum(start + span, blocks * BLOCK)

    unit = start + tl.arange(0, TILE)
    block = unit // BLOCK
    valid = (unit < end) & (block * PAGE >= first) & (block * PAGE + PAGE <= tokens)
    page = tl.load(ids + block, mask=valid, other=0)
    _copy(
        unit, page, valid & (page > 0), pages, part, page_stride, first, tokens,
        GATHER, ORDER, PAGE, HEADS, HEAD, TAIL, UNIT, WORD, False, LOADS, STORES,
    )  # fmt: skip

    if EDGES:
        # The block that `first` cuts, and the one that `tokens` cuts, unless it is the same.
        lower = first // PAGE
        upper = tokens // PAGE
        if first % PAGE != 0:
            _copy_cut(
                lower, start, end, ids, pages, part, page_stride, first, tokens,
                GATHER, ORDER, PAGE, HEADS, HEAD, TAIL, UNIT, TILE, LOADS, STORES,
            )  # fmt: skip
        if (tokens % PAGE != 0) & ((first % PAGE == 0) | (lower != upper)):
            _copy_cut(
                upper, start, end, ids, pages, part, page_stride, first, tokens,
                GATHER, ORDER, PAGE, HEADS, HEAD, TAIL, UNIT, TILE, LOADS, STORES,
            )  # fmt: skip
