"""Paged prefill attention for any GPU that Triton supports, and for its interpreter.

A program attends a block of query rows of one KV head; the heads of a group are rows of the same
block, so K and V are read once for all of them. Tiles of the context are gathered token by token
through the block table: only addresses depend on the page size. Only tiles with partly visible
columns are masked.
"""

import triton
import triton.language as tl

from kvproof.kernels.paged_prefill.arguments import MOST_TREE
from kvproof.kernels.paged_prefill.triton_kernel_combine import other_part
from kvproof.kernels.paged_prefill.triton_kernel_work import FIELDS

LOG2E = tl.constexpr(1.4426950408889634)
TREE = tl.constexpr(MOST_TREE)
OF_HEADS = tl.constexpr(1)
OF_TOKENS = tl.constexpr(2)


@triton.jit
def _weights(s, top, total, visible, scale, MASKED: tl.constexpr):
    """Weights of a tile of scores, and the factor for all earlier ones."""
    if MASKED:
        s = tl.where(visible, s, float("-inf"))
    new_top = tl.maximum(top, tl.max(s, 1))
    base = new_top * scale
    if MASKED:
        # A row that has seen nothing yet has no maximum.
        base = tl.where(new_top == float("-inf"), 0.0, base)
    p = tl.exp2(s * scale - base[:, None])
    shrink = tl.exp2(top * scale - base)
    return p, new_top, total * shrink + tl.sum(p, 1), shrink


@triton.jit
def shares(weight, other):
    """The base-2 logarithm of the sum of two, and the share of each; none of nothing."""
    top = tl.maximum(weight, other)
    base = tl.where(top > float("-inf"), top, 0.0)
    mine = tl.exp2(weight - base)
    theirs = tl.exp2(other - base)
    whole = tl.where(top > float("-inf"), mine + theirs, 1.0)
    return tl.where(top > float("-inf"), base + tl.log2(whole), top), mine / whole, theirs / whole


@triton.jit
def in_tree(bits, number):
    """Whether rows see tokens of their request, by the numbers of these among its new tokens."""
    bit = tl.minimum(tl.maximum(number, 0), TREE - 1).to(tl.int64)
    known = (number < 0) | (number >= TREE)
    return known[None, :] | (((bits[:, None] >> bit[None, :]) & 1) == 1)


@triton.jit
def _attend(
    acc,
    top,
    total,
    q,
    own,
    first,
    last,
    length,
    table,
    k_base,
    v_base,
    k_page,
    k_slot,
    v_page,
    v_slot,
    k_scale,
    v_scale,
    scale_page,
    scale_slot,
    factor,
    cap,
    cached,
    bits,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
    SCALES: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Add the tiles `first` to `last - 1` of the context to the state of a block of rows."""
    columns = tl.arange(0, COLUMNS)
    for tile in tl.range(first, last):
        key = tile * TILE + tl.arange(0, TILE)
        if MASKED:
            live = key < length
            page = tl.load(table + key // PAGE, mask=live, other=0).to(tl.int64)
        else:
            live = key >= 0
            page = tl.load(table + key // PAGE).to(tl.int64)
        slot = key % PAGE
        mask = live[:, None] & (columns < DIM)[None, :]
        k_rows = k_base + page * k_page + slot * k_slot
        k = tl.load(k_rows[:, None] + columns[None, :], mask=mask, other=0.0)
        s = tl.dot(q, tl.trans(k.to(q.dtype)))
        if SCALES == OF_TOKENS:
            scales = page * scale_page + slot * scale_slot
            s = s * tl.load(k_scale + scales, mask=live, other=0.0)[None, :]
        if CAPPED:
            # cap * tanh(x / cap), with tanh written by its exponential.
            s = tl.exp2(tl.minimum(s * (factor / cap * 2.0 * LOG2E), 126.0))
            s = cap - 2.0 * cap / (1.0 + s)
            scale = LOG2E
        else:
            scale = factor * LOG2E
        visible = (key[None, :] <= own[:, None]) & live[None, :]
        if WINDOW > 0:
            visible = visible & (key[None, :] > own[:, None] - WINDOW)
        if MASKED and bits is not None:
            visible = visible & in_tree(bits, key - cached)
        p, top, total, shrink = _weights(s, top, total, visible, scale, MASKED)
        if SCALES == OF_TOKENS:
            p = p * tl.load(v_scale + scales, mask=live, other=0.0)[None, :]
        v_rows = v_base + page * v_page + slot * v_slot
        v = tl.load(v_rows[:, None] + columns[None, :], mask=mask, other=0.0)
        acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc * shrink[:, None])
    return acc, top, total


@triton.jit(do_not_specialize=["room"])
def prefill(
    q,
    k_pages,
    v_pages,
    out,
    parts,
    weights,
    lse,
    counts,
    items,
    block_table,
    tree,
    part,
    part_lse,
    sinks,
    k_scale,
    v_scale,
    factor,
    cap,
    room,
    table_row,
    part_row,
    part_lse_row,
    q_row,
    q_head,
    k_page,
    k_slot,
    k_head,
    v_page,
    v_slot,
    v_head,
    out_row,
    out_head,
    lse_row,
    lse_head,
    scale_page,
    scale_slot,
    scale_head,
    GROUP: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
    SCALES: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Attend one item: a block of query rows of one KV head over a range of the context."""
    if tl.program_id(0) >= tl.load(counts):
        return
    items += tl.program_id(0) * FIELDS
    start = tl.load(items)
    new = tl.load(items + 1)
    length = tl.load(items + 2)
    request = tl.load(items + 3)
    row = tl.load(items + 4)
    low = tl.load(items + 5)
    end = tl.load(items + 6)
    slot = tl.load(items + 7)
    kv_head = tl.load(items + 8)
    first = tl.load(items + 9)
    rows = row + tl.arange(0, ROWS)
    token = rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    columns = tl.arange(0, COLUMNS)
    here = (token < new)[:, None] & (columns < DIM)[None, :]
    token_row = (start + token).to(tl.int64)
    q_rows = q + token_row * q_row + head * q_head
    queries = tl.load(q_rows[:, None] + columns[None, :], mask=here, other=0.0)
    if INTERPRETED:
        # The interpreter multiplies the bits of bfloat16 as if they were integers.
        queries = queries.to(tl.float32)
    own = first + token
    lowest = tl.minimum(first + row // GROUP, length - 1)
    highest = first + tl.minimum((row + ROWS - 1) // GROUP, new - 1)
    bits = None
    if tree is not None:
        bits = tl.load(tree + start + token, mask=token < new, other=0)
        lowest = first - 1
    inner_low = 0
    if WINDOW > 0:
        inner_low = (tl.maximum(highest - WINDOW + 1, 0) + TILE - 1) // TILE
    inner_low = tl.minimum(tl.maximum(inner_low, low), end)
    inner_end = tl.minimum(tl.maximum((lowest + 1) // TILE, inner_low), end)
    k_base = k_pages + kv_head * k_head
    v_base = v_pages + kv_head * v_head
    table = block_table + request.to(tl.int64) * table_row
    k_scales = k_scale
    v_scales = v_scale
    if SCALES == OF_TOKENS:
        k_scales = k_scale + kv_head * scale_head
        v_scales = v_scale + kv_head * scale_head
    if SCALES == OF_HEADS:
        factor *= tl.load(k_scale + kv_head)
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    # A narrow window shows few tiles: one loop over them starts all loads at once.
    NARROW: tl.constexpr = WINDOW > 0 and WINDOW <= 4 * TILE
    if NARROW:
        inner_low = low
        inner_end = low
    elif WINDOW > 0:
        acc, top, total = _attend(
            acc, top, total, queries, own, low, inner_low, length, table, k_base, v_base,
            k_page, k_slot, v_page, v_slot, k_scales, v_scales, scale_page, scale_slot,
            factor, cap, first, bits, PAGE, DIM, COLUMNS, TILE, WINDOW, CAPPED, SCALES, MASKED=True,
        )  # fmt: skip
    if not NARROW:
        acc, top, total = _attend(
            acc, top, total, queries, own, inner_low, inner_end, length, table, k_base, v_base,
            k_page, k_slot, v_page, v_slot, k_scales, v_scales, scale_page, scale_slot,
            factor, cap, first, bits, PAGE, DIM, COLUMNS, TILE, WINDOW, CAPPED, SCALES,
            MASKED=False,
        )  # fmt: skip
    acc, top, total = _attend(
        acc, top, total, queries, own, inner_end, end, length, table, k_base, v_base,
        k_page, k_slot, v_page, v_slot, k_scales, v_scales, scale_page, scale_slot,
        factor, cap, first, bits, PAGE, DIM, COLUMNS, TILE, WINDOW, CAPPED, SCALES, MASKED=True,
    )  # fmt: skip
    scale = LOG2E if CAPPED else factor * LOG2E
    base = tl.where(top > float("-inf"), top * scale, 0.0)
    if sinks is not None:
        sink = tl.exp2(tl.load(sinks + head) * LOG2E - base)
        total += tl.where(slot < 0, sink, 0.0)
    # Rows that see nothing of a part weigh nothing when the parts are merged.
    some = tl.where(total > 0, total, 1.0)
    weight = tl.where(total > 0, base + tl.log2(some), float("-inf"))
    if SCALES == OF_HEADS:
        acc *= tl.load(v_scale + kv_head)
    acc = acc / some[:, None]
    if part is not None:
        # Of a block in pieces the kernel that merges these adds the other part.
        other, value = other_part(
            part, part_lse, token_row * part_row, token_row * part_lse_row, head,
            token < tl.where(slot < 0, new, 0), DIM, COLUMNS,
        )  # fmt: skip
        weight, mine, theirs = shares(weight, other)
        acc = acc * mine[:, None] + value * theirs[:, None]
    if slot < 0:
        out_rows = out + token_row * out_row + head * out_head
        tl.store(out_rows[:, None] + columns[None, :], acc.to(out.dtype.element_ty), mask=here)
        if lse is not None:
            sums = lse + token_row * lse_row + head * lse_head
            tl.store(sums, weight / LOG2E, mask=token < new)
    else:
        place = (kv_head * room + slot).to(tl.int64) * ROWS + rows - row
        tl.store(parts + place[:, None] * DIM + columns[None, :], acc, mask=here)
        tl.store(weights + place, weight, mask=token < new)
