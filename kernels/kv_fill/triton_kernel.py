"""Scatters rows of new keys and values into pages, and quantises them.

A row is contiguous on both sides: all heads of a token, or one head of it. Rows are numbered token
by token; the tile of a program has `ROWS` of them and `COLUMNS` elements of each.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _request_of(token, query_starts, batch, BATCH: tl.constexpr):
    """Count the requests that end at or before a token; all at once, since a search is serial."""
    request = 0
    first = 0
    while first < batch:
        index = first + tl.arange(0, BATCH)
        end = tl.load(query_starts + 1 + index, mask=index < batch, other=2147483647)
        request += tl.sum((end <= token).to(tl.int32), axis=0)
        first += BATCH
    return request


@triton.jit
def _owners(token, first, last, starts, query_starts, batch, BATCH: tl.constexpr):
    # In decoding token i is request i's: tried before anything is searched.
    request = tl.minimum(first, batch - 1)
    begin = tl.load(query_starts + request)
    end = tl.load(query_starts + request + 1)
    if (first < begin) | (first >= end):
        request = _request_of(first, query_starts, batch, BATCH)
    owner = tl.zeros_like(token)
    position = token
    end = first
    while (request < batch) & (end <= last):
        begin = tl.load(query_starts + request)
        end = tl.load(query_starts + request + 1)
        start = tl.load(starts + request)
        owns = (token >= begin) & (token < end)
        owner = tl.where(owns, request, owner)
        position = tl.where(owns, token - begin + start, position)
        request += 1
    return owner, position


@triton.jit
def _on_float8_grid(x):
    """Nearest value of e4m3, ties to even; the interpreter's own conversion rounds wrongly."""
    bits = x.to(tl.int32, bitcast=True)
    sign = bits & -2147483648
    power = (bits & 0x7F800000).to(tl.float32, bitcast=True)
    large = tl.maximum(power, 0.015625) * 1572864.0
    nearest = (tl.abs(x) + large) - large
    return (nearest.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def _to_float8(x, scale, INTERPRETED: tl.constexpr):
    inverse = tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)
    y = tl.clamp(x.to(tl.float32) * inverse[:, None], -448.0, 448.0)
    if INTERPRETED:
        y = _on_float8_grid(y)
    return y.to(tl.float8e4nv)


@triton.jit
def _to_int8(x, LEAST: tl.constexpr):
    """Integers in -127 .. 127 and the scale of each row."""
    y = x.to(tl.float32)
    largest = tl.max(tl.abs(y), axis=1)
    largest = tl.where(largest >= LEAST, largest, 0.0)
    most = tl.full(largest.shape, 127.0, tl.float32)
    factor = tl.div_rn(most, tl.where(largest > 0, largest, 1.0))
    # Adding and taking away 1.5 * 2**23 leaves the nearest integer, ties to even.
    nearest = (y * factor[:, None] + 12582912.0) - 12582912.0
    return nearest.to(tl.int8), tl.div_rn(largest, most)


@triton.jit
def _to_int4(x, LEAST_STEP: tl.constexpr):
    """Bytes of two columns each, and scales with the zero point in their low 4 bits."""
    y = x.to(tl.float32)
    # Absent columns are zeros, and zero is in the range of every row.
    low = tl.min(y, axis=1)
    high = tl.max(y, axis=1)
    low = tl.minimum(low, 0.0)
    high = tl.maximum(high, 0.0)
    steps = tl.full(low.shape, 15.0, tl.float32)
    scale = tl.maximum(tl.div_rn(high - low, steps), LEAST_STEP)
    zero = tl.floor(tl.div_rn(-low, scale) + 0.5)
    inverse = tl.div_rn(tl.full(low.shape, 1.0, tl.float32), scale)
    level = y * inverse[:, None] + zero[:, None]
    level = tl.floor(tl.clamp(level, 0.0, 15.0) + 0.5).to(tl.int32)
    even, odd = tl.split(tl.reshape(level, [x.shape[0], x.shape[1] // 2, 2]))
    words = (scale.to(tl.int32, bitcast=True) & -16) | zero.to(tl.int32)
    return (even | (odd << 4)).to(tl.uint8), words.to(tl.float32, bitcast=True)


@triton.jit
def _put(
    x, pages, at, known, scale, scales, scale_at, head, wanted,
    QUANTISED: tl.constexpr, LEAST: tl.constexpr, LEAST_STEP: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    if QUANTISED == "fp8":
        x = _to_float8(x, tl.load(scale + head, mask=wanted, other=1.0), INTERPRETED)
    if QUANTISED == "int8":
        x, factor = _to_int8(x, LEAST)
        tl.store(scales + scale_at, factor, mask=wanted)
    if QUANTISED == "int4":
        x, words = _to_int4(x, LEAST_STEP)
        tl.store(scales + scale_at, words, mask=wanted)
    tl.store(pages + at, x, mask=known)


@triton.jit(do_not_specialize=["count", "batch", "table_stride"])
def fill(
    k, v, k_pages, v_pages, k_scale, v_scale, k_scales, v_scales,
    ids, starts, query_starts,
    count, batch, page_size, table_stride,
    k_token, k_head, v_token, v_head,
    stride_page, stride_token, stride_head,
    scale_page, scale_token, scale_head,
    HEADS: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BATCH: tl.constexpr, VALUES: tl.constexpr, QUANTISED: tl.constexpr,
    DEPENDENT: tl.constexpr, LEAST: tl.constexpr, LEAST_STEP: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """`ids`: slots if `BATCH` is 0, else a block table; `BATCH` requests are compared at once."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    token = row // HEADS
    head = row % HEADS
    there = row < count
    columns = column < DIM
    known = there[:, None] & columns[None, :]
    if DEPENDENT:
        gdc_wait()
        # Not before: launches would pile up, and the last of a pile are spread unevenly.
        gdc_launch_dependents()
    # Both loads start before anything is known about where the rows go.
    from_k = token.to(tl.int64) * k_token + head * k_head
    k_rows = tl.load(k + from_k[:, None] + column[None, :], known, other=0)
    if VALUES:
        from_v = token.to(tl.int64) * v_token + head * v_head
        v_rows = tl.load(v + from_v[:, None] + column[None, :], known, other=0)
    if BATCH == 0:
        slot = tl.load(ids + token, mask=there, other=-1).to(tl.int32)
        wanted = slot >= 0
        page = slot // page_size
        offset = slot % page_size
    else:
        wanted = there & (token < tl.load(query_starts + batch))
        first = tl.program_id(0) * ROWS // HEADS
        last = (tl.program_id(0) * ROWS + ROWS - 1) // HEADS
        request, position = _owners(token, first, last, starts, query_starts, batch, BATCH)
        entry = request.to(tl.int64) * table_stride + position // page_size
        page = tl.load(ids + entry, mask=wanted, other=0)
        wanted = wanted & (page >= 0)
        offset = position % page_size
    page = page.to(tl.int64)
    offset = offset.to(tl.int64)
    to = page * stride_page + offset * stride_token + head * stride_head
    stored = column
    columns = wanted[:, None] & columns[None, :]
    if QUANTISED == "int4":
        stored = tl.arange(0, COLUMNS // 2)
        columns = wanted[:, None] & (stored < DIM // 2)[None, :]
    at = to[:, None] + stored[None, :]
    scale_at = page * scale_page + offset * scale_token + head * scale_head
    _put(
        k_rows, k_pages, at, columns, k_scale, k_scales, scale_at, head, wanted,
        QUANTISED, LEAST, LEAST_STEP, INTERPRETED,
    )  # fmt: skip
    if VALUES:
        _put(
            v_rows, v_pages, at, columns, v_scale, v_scales, scale_at, head, wanted,
            QUANTISED, LEAST, LEAST_STEP, INTERPRETED,
        )  # fmt: skip
