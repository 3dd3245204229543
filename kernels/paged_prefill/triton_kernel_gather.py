"""Copies the context of a batch from its pages into rows of one dtype."""

import triton
import triton.language as tl


@triton.jit
def gather(
    k_pages,
    v_pages,
    k_rows,
    v_rows,
    block_table,
    lengths,
    query_starts,
    k_scale,
    v_scale,
    table_row,
    k_page,
    k_slot,
    k_head,
    v_page,
    v_slot,
    v_head,
    scale_page,
    scale_slot,
    scale_head,
    room,
    window,
    PAGE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    LONGEST_TILE: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Copy `ROWS` tokens of K and V, if some new token sees them.

    Rows are [batch, room, kv heads, WIDTH], zero from column DIM on. With `SCALED`, values are
    multiplied by the scale of their token and head.
    """
    request = tl.program_id(1)
    new = tl.load(query_starts + request + 1) - tl.load(query_starts + request)
    # Not a term of `live`: in Triton's interpreter, block & scalar is no mask.
    length = tl.where(new > 0, tl.load(lengths + request), 0)
    position = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = position < length
    if window > 0:
        # Whole tiles are read: what a tile holds before the window weighs nothing, but must exist.
        live = live & (position > length - new - window - LONGEST_TILE)
    table = block_table + request.to(tl.int64) * table_row
    page = tl.load(table + position // PAGE, mask=live, other=0).to(tl.int64)
    slot = position % PAGE
    rows = (request.to(tl.int64) * room + position) * (KV_HEADS * WIDTH)
    k_from = page * k_page + slot * k_slot
    v_from = page * v_page + slot * v_slot
    scales = page * scale_page + slot * scale_slot
    for first in tl.static_range(0, KV_HEADS * WIDTH, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        there = live[:, None] & (column < KV_HEADS * WIDTH)[None, :]
        mask = there & (column % WIDTH < DIM)[None, :] if WIDTH > DIM else there
        head = column // WIDTH
        k_at = (head * k_head + column % WIDTH)[None, :]
        v_at = (head * v_head + column % WIDTH)[None, :]
        k = tl.load(k_pages + k_from[:, None] + k_at, mask=mask, other=0.0)
        v = tl.load(v_pages + v_from[:, None] + v_at, mask=mask, other=0.0)
        if SCALED:
            place = scales[:, None] + (head * scale_head)[None, :]
            k = k.to(tl.float32) * tl.load(k_scale + place, mask=there)
            v = v.to(tl.float32) * tl.load(v_scale + place, mask=there)
        to = rows[:, None] + column[None, :]
        tl.store(k_rows + to, k.to(k_rows.dtype.element_ty), mask=there)
        tl.store(v_rows + to, v.to(v_rows.dtype.element_ty), mask=there)
