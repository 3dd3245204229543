"""Paged prefill attention for Hopper, without a copy of the context.

One or two warps copy keys and as many values, by the tensor memory unit from their pages straight
into the tiles of a ring in shared memory, as many copies a tile as it has pages. A copy takes one
instruction for each 64 columns; two warps share them. Two or three warp groups attend 64 query rows
each. A warp group starts the scores of a tile, then the values of the tile before, and works on its
softmax while the tensor cores are busy with the values. Tiles go from the newest to the oldest: the
few that need a mask come first, and so does the one with rows that do not exist. Of 64 query rows
or fewer, as decoding requests have, one warp group attends alone.

The schedule is the one that the FlashAttention-3 paper describes (Shah et al., 2024).
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kvproof.kernels.gluon import async_load, barrier
from kvproof.kernels.grid import Grid
from kvproof.kernels.paged_prefill.arguments import MOST_TREE
from kvproof.kernels.paged_prefill.triton_kernel_work import FIELDS

LOG2E = gl.constexpr(1.4426950408889634)
BITS = gl.constexpr(MOST_TREE)
_DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


def descriptor(tensor: torch.Tensor, grid: Grid, box: tuple[int, int]) -> TensorDescriptor:
    """A tensor as the rows of its grid; a copy moves `box`."""
    size = tensor.element_size()
    shape, strides = [grid.rows, grid.heads * grid.head // size], [grid.apart // size, 1]
    layout = gl.NVMMASharedLayout.get_default_for(box, _DTYPES[tensor.dtype])
    return TensorDescriptor(tensor, shape, strides, list(box), layout)


@gluon.jit
def _inner(
    cached, new, row, low, end, GROUP: gl.constexpr, ROWS: gl.constexpr, WINDOW: gl.constexpr,
    TILE: gl.constexpr, TREE: gl.constexpr,
):  # fmt: skip
    """Tiles in [inner_low, inner_end) need no mask; the first tile of an item always does."""
    inner_low = low
    if WINDOW > 0:
        highest = cached + gl.minimum((row + ROWS - 1) // GROUP, new - 1)
        inner_low = (gl.maximum(highest - WINDOW + 1, 0) + TILE - 1) // TILE
    inner_low = gl.minimum(gl.maximum(inner_low, low), end - 1)
    inner_end = (cached if TREE else cached + row // GROUP + 1) // TILE
    return inner_low, gl.minimum(gl.maximum(inner_end, inner_low), end - 1)


@gluon.jit
def _copy_pages(pool, wanted, PAGE: gl.constexpr, BOX: gl.constexpr):
    """Copy K or V, tile by tile, as the stages of its ring become free."""
    desc, smem, full, empty, rows, apart = pool
    table, column, length, low, end = wanted
    STAGES: gl.constexpr = smem.shape[0]
    TILE: gl.constexpr = smem.shape[1]
    for i in range(end - low):
        stage = i % STAGES
        first = (end - 1 - i) * TILE
        pages = ()
        for j in gl.static_range(TILE // BOX):
            position = first + j * BOX
            page = gl.load(table + position // PAGE, mask=position < length, other=0)
            pages = pages + (page,)  # noqa: RUF005 - Triton has no starred expressions
        mbarrier.wait(empty.index(stage), ((i // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(stage), TILE * smem.shape[2] * 2)
        for j in gl.static_range(TILE // BOX):
            position = first + j * BOX
            # Past the end of the pool the copy brings zeros.
            row = gl.where(position < length, pages[j] * apart + position % PAGE, rows)
            place = smem.index(stage).slice(j * BOX, BOX)
            async_load(desc, [row, column], full.index(stage), place)


@gluon.jit
def _zero_beyond(v_tile, start, length):
    """Zero the rows of positions that do not exist: 0 times NaN would be NaN."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    CHUNK: gl.constexpr = 16
    for c in gl.static_range(v_tile.shape[0] // CHUNK):
        part = v_tile.slice(c * CHUNK, CHUNK)
        here = start + c * CHUNK + gl.arange(0, CHUNK, gl.SliceLayout(1, layout))
        part.store(gl.where((here < length)[:, None], part.load(layout), 0.0))
    fence_async_shared()
    barrier()


@gluon.jit
def _load_queries(
    q, q_tile, start, first, rows_left, kv_head, q_row, q_head,
    WHICH: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr,
):  # fmt: skip
    """Load the rows of a warp group; zero are those that do not exist, and columns from DIM on.

    Those columns of keys belong to the next head.
    """
    HALF: gl.constexpr = q_tile.shape[0]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    row = WHICH * HALF + gl.arange(0, HALF, gl.SliceLayout(1, layout))
    column = gl.arange(0, q_tile.shape[1], gl.SliceLayout(0, layout))
    packed = first + row
    head = kv_head * GROUP + packed % GROUP
    rows = q + (start + packed // GROUP).to(gl.int64) * q_row + head * q_head
    mask = (row < rows_left)[:, None] & (column < DIM)[None, :]
    q_tile.store(gl.load(rows[:, None] + column[None, :], mask=mask, other=0.0))
    fence_async_shared()
    barrier()


@gluon.jit
def _weights(
    s, top, total, tile, place, factor, cap, WINDOW: gl.constexpr, CAPPED: gl.constexpr,
    TREE: gl.constexpr, layout: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Unnormalised weights of one tile of scores, and the factor for the earlier ones."""
    TILE: gl.constexpr = s.shape[1]
    if CAPPED:
        s = cap - 2.0 * cap / (1.0 + gl.exp2(s * (factor / cap * 2.0 * LOG2E)))
        scale = LOG2E
    else:
        scale = factor * LOG2E
    if MASKED:
        own, length, _, cached, bits = place
        key = tile * TILE + gl.arange(0, TILE, gl.SliceLayout(0, layout))[None, :]
        visible = (key <= own[:, None]) & (key < length)
        if TREE:
            bit = gl.minimum(gl.maximum(key - cached, 0), BITS - 1).to(gl.int64)
            known = (key < cached) | (key >= cached + BITS)
            visible = visible & (known | (((bits[:, None] >> bit) & 1) == 1))
        if WINDOW > 0:
            visible = visible & (key > own[:, None] - WINDOW)
        s = gl.where(visible, s, float("-inf"))
    new_top = gl.maximum(top, gl.max(s, axis=1))
    base = new_top * scale
    if MASKED:
        base = gl.where(new_top == float("-inf"), 0.0, base)
    p = gl.exp2(s * scale - base[:, None])
    shrink = gl.exp2(top * scale - base)
    total = total * shrink + gl.sum(p, axis=1)
    return p, new_top, total, shrink


@gluon.jit
def shares(weight, other):
    """The base-2 logarithm of the sum of two, and the share of each; none of nothing."""
    top = gl.maximum(weight, other)
    base = gl.where(top > float("-inf"), top, 0.0)
    mine = gl.exp2(weight - base)
    theirs = gl.exp2(other - base)
    whole = gl.where(top > float("-inf"), mine + theirs, 1.0)
    return gl.where(top > float("-inf"), base + gl.log2(whole), top), mine / whole, theirs / whole


@gluon.jit
def _start_scores(q_kept, q_tile, k_tile, layout: gl.constexpr, KEPT: gl.constexpr):
    """Start the scores of a tile: products of the columns in registers, then of the others."""
    HALF: gl.constexpr = q_tile.shape[0]
    REST: gl.constexpr = q_tile.shape[1] - KEPT
    TILE: gl.constexpr = k_tile.shape[0]
    s = gl.zeros([HALF, TILE], gl.float32, layout)
    if KEPT > 0:
        turned = k_tile.slice(0, KEPT, 1).permute([1, 0])
        s = warpgroup_mma(q_kept, turned, s, use_acc=False, is_async=True)
        turned = k_tile.slice(KEPT, REST, 1).permute([1, 0])
        s = warpgroup_mma(q_tile.slice(KEPT, REST, 1), turned, s, is_async=True)
    else:
        s = warpgroup_mma(q_tile, k_tile.permute([1, 0]), s, use_acc=False, is_async=True)
    return s


@gluon.jit
def _paired(w, HALVES: gl.constexpr):
    """Weights of two columns, rounded, in a word.

    Halves of words that live from one pass of a loop to the next would take a register each.
    """
    low, high = gl.split(w.reshape([w.shape[0], w.shape[1] // 2, 2]))
    return gl.inline_asm_elementwise(
        "cvt.rn." + HALVES + "x2.f32 $0, $2, $1;", "=r,f,f", [low, high],
        dtype=gl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def _apart(pairs, dtype: gl.constexpr, layout: gl.constexpr):
    """The weights of words, as the operand of a product."""
    low = pairs.to(gl.int16).to(dtype, bitcast=True)
    high = (pairs >> 16).to(gl.int16).to(dtype, bitcast=True)
    wide = gl.join(low, high).reshape([pairs.shape[0], pairs.shape[1] * 2])
    return gl.convert_layout(wide, layout)


@gluon.jit
def _step(
    state, tile, i, q_kept, q_tile, ring, place, factor, cap, WINDOW: gl.constexpr,
    CAPPED: gl.constexpr, TREE: gl.constexpr, s_layout: gl.constexpr, o_layout: gl.constexpr,
    KEPT: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Scores of the `i`-th tile, and their weights while those of the tile before are applied."""
    acc, pairs, shrink, top, total = state
    k_smem, v_smem, k_full, k_empty, v_full, v_empty = ring
    low = place[2]
    STAGES: gl.constexpr = k_smem.shape[0]
    HALVES: gl.constexpr = "bf16" if q_tile.dtype == gl.bfloat16 else "f16"
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    stage = i % STAGES
    before = (i - 1) % STAGES
    s = _start_scores(q_kept, q_tile, k_smem.index(stage), s_layout, KEPT)
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, o_layout))[:, None]
    mbarrier.wait(v_full.index(before), ((i - 1) // STAGES) & 1)
    p = _apart(pairs, q_tile.dtype, p_layout)
    acc = warpgroup_mma(p, v_smem.index(before), acc, is_async=True)
    s = warpgroup_mma_wait(1, deps=[s])
    mbarrier.arrive(k_empty.index(stage))
    w, top, total, shrink = _weights(
        s, top, total, tile, place, factor, cap, WINDOW, CAPPED, TREE, s_layout, MASKED
    )
    # This wait also keeps ptxas from moving the next one above the softmax: it ends a basic block.
    after = i + 1
    mbarrier.wait(k_full.index(after % STAGES), (after // STAGES) & 1, pred=tile > low)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(v_empty.index(before))
    pairs = _paired(w, HALVES)
    return acc, pairs, shrink, top, total


@gluon.jit
def _store_lines(
    value, place, out, start, first, rows_left, kv_head, out_row, out_head,
    WHICH: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr,
):  # fmt: skip
    """Store results by way of the memory of the queries: 16 bytes of a row with each access.

    Short blocks take up to 8 % less time. Three warp groups have no registers for it.
    """
    HALF: gl.constexpr = place.shape[0]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    place.store(value)
    barrier()
    row = WHICH * HALF + gl.arange(0, HALF, gl.SliceLayout(1, layout))
    column = gl.arange(0, place.shape[1], gl.SliceLayout(0, layout))
    packed = first + row
    head = kv_head * GROUP + packed % GROUP
    rows = out + (start + packed // GROUP).to(gl.int64) * out_row + head * out_head
    mask = (row < rows_left)[:, None] & (column < DIM)[None, :]
    gl.store(rows[:, None] + column[None, :], place.load(layout), mask=mask)


@gluon.jit
def _consume(
    block, WHICH: gl.constexpr, DIM: gl.constexpr, WINDOW: gl.constexpr, CAPPED: gl.constexpr,
    GROUP: gl.constexpr, DEPENDENT: gl.constexpr,
):  # fmt: skip
    tensors, strides, item, tiles, q_smem, ring, factor, cap = block
    q, more, out, parts, weights, lse, sinks, v_scale = tensors
    q_row, q_head, out_row, out_head, lse_row, lse_head = strides
    start, first, rows_left, cached, kv_head, slot, length = item
    k_smem, v_smem, k_full, k_empty, v_full, _ = ring
    low, inner_low, inner_end, end = tiles
    STAGES: gl.constexpr = k_smem.shape[0]
    TILE: gl.constexpr = k_smem.shape[1]
    COLUMNS: gl.constexpr = k_smem.shape[2]
    HALF: gl.constexpr = q_smem.shape[1]
    # Of wide rows half the columns of the queries stay in registers: with all operands of the
    # scores in shared memory its bandwidth is used up by them, the values and the copies.
    KEPT: gl.constexpr = COLUMNS // 2 if COLUMNS > 128 else 0
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    q_tile = q_smem.index(WHICH)
    short = WHICH * HALF + gl.arange(0, HALF, gl.SliceLayout(1, s_layout))
    own = cached + (first + short) // GROUP
    tree, part, part_lse, part_row, part_lse_row = more
    TREE: gl.constexpr = tree is not None
    bits = own
    if TREE:
        bits = gl.load(tree + start + (first + short) // GROUP, mask=short < rows_left, other=0)
    place = (own, length, low, cached, bits)
    top = gl.full([HALF], float("-inf"), gl.float32, gl.SliceLayout(1, s_layout))
    total = gl.zeros([HALF], gl.float32, gl.SliceLayout(1, s_layout))
    acc = gl.zeros([HALF, COLUMNS], gl.float32, o_layout)

    _load_queries(q, q_tile, start, first, rows_left, kv_head, q_row, q_head, WHICH, GROUP, DIM)
    mbarrier.wait(k_full.index(0), 0)
    q_kept = 0
    if KEPT > 0:
        q_kept = q_tile.slice(0, KEPT, 1).load(gl.DotOperandLayout(0, s_layout, 2))
    s = _start_scores(q_kept, q_tile, k_smem.index(0), s_layout, KEPT)
    s = warpgroup_mma_wait(0, deps=[s])
    mbarrier.arrive(k_empty.index(0))
    tile = end - 1
    w, top, total, shrink = _weights(
        s, top, total, tile, place, factor, cap, WINDOW, CAPPED, TREE, s_layout, MASKED=True
    )
    HALVES: gl.constexpr = "bf16" if q_smem.dtype == gl.bfloat16 else "f16"
    pairs = _paired(w, HALVES)
    if end * TILE > length:
        mbarrier.wait(v_full.index(0), 0)
        _zero_beyond(v_smem.index(0), tile * TILE, length)
    mbarrier.wait(k_full.index(1 % STAGES), (1 // STAGES) & 1, pred=tile > low)
    for tile in range(end - 2, inner_end - 1, -1):
        state = (acc, pairs, shrink, top, total)
        acc, pairs, shrink, top, total = _step(
            state, tile, end - 1 - tile, q_kept, q_tile, ring, place, factor, cap,
            WINDOW, CAPPED, TREE, s_layout, o_layout, KEPT, MASKED=True,
        )  # fmt: skip
    for tile in range(inner_end - 1, inner_low - 1, -1):
        state = (acc, pairs, shrink, top, total)
        acc, pairs, shrink, top, total = _step(
            state, tile, end - 1 - tile, q_kept, q_tile, ring, place, factor, cap,
            WINDOW, CAPPED, TREE, s_layout, o_layout, KEPT, MASKED=False,
        )  # fmt: skip
    if WINDOW > 0:
        for tile in range(inner_low - 1, low - 1, -1):
            state = (acc, pairs, shrink, top, total)
            acc, pairs, shrink, top, total = _step(
                state, tile, end - 1 - tile, q_kept, q_tile, ring, place, factor, cap,
                WINDOW, CAPPED, TREE, s_layout, o_layout, KEPT, MASKED=True,
            )  # fmt: skip
    last = end - 1 - low
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, o_layout))[:, None]
    mbarrier.wait(v_full.index(last % STAGES), (last // STAGES) & 1)
    p = _apart(pairs, q_smem.dtype, p_layout)
    acc = warpgroup_mma(p, v_smem.index(last % STAGES), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])
    scale = LOG2E if CAPPED else factor * LOG2E
    short_head = kv_head * GROUP + (first + short) % GROUP
    base = gl.where(top > float("-inf"), top * scale, 0.0)
    if sinks is not None:
        sink = gl.exp2(gl.load(sinks + short_head) * LOG2E - base)
        total += gl.where(slot < 0, sink, 0.0)
    # Rows that see nothing of a part weigh nothing when the parts are merged.
    weight = gl.where(total > 0.0, base + gl.log2(total), float("-inf"))
    total = gl.where(total > 0.0, total, 1.0)
    if v_scale is not None:
        acc = acc * gl.load(v_scale + kv_head)
    acc = acc / gl.convert_layout(total, gl.SliceLayout(1, o_layout))[:, None]
    row = WHICH * HALF + gl.arange(0, HALF, gl.SliceLayout(1, o_layout))
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, o_layout))
    mask = (row < rows_left)[:, None] & (column < DIM)[None, :]
    head = kv_head * GROUP + (first + row) % GROUP
    token_row = (start + (first + row) // GROUP).to(gl.int64)
    if DEPENDENT:
        gdc_wait()
    if part is not None:
        # Of a block in pieces the kernel that merges these adds the other part.
        live = gl.where(slot < 0, rows_left, 0)
        sums = part_lse + (start + (first + short) // GROUP).to(gl.int64) * part_lse_row
        other = gl.load(sums + short_head, mask=short < live, other=float("-inf")) * LOG2E
        weight, mine, theirs = shares(weight, other)
        read = gl.convert_layout(other, gl.SliceLayout(1, o_layout)) > float("-inf")
        there = part + (token_row * part_row + head * DIM)[:, None] + column[None, :]
        addend = gl.load(there, mask=mask & read[:, None], other=0.0).to(gl.float32)
        acc = acc * gl.convert_layout(mine, gl.SliceLayout(1, o_layout))[:, None]
        acc += addend * gl.convert_layout(theirs, gl.SliceLayout(1, o_layout))[:, None]
    if slot < 0:
        value = acc.to(out.dtype.element_ty)
        if COLUMNS > 64 and value.dtype == q_tile.dtype:
            _store_lines(
                value, q_tile, out, start, first, rows_left, kv_head, out_row, out_head,
                WHICH, GROUP, DIM,
            )  # fmt: skip
        else:
            rows = out + token_row * out_row + head * out_head
            gl.store(rows[:, None] + column[None, :], value, mask=mask)
        if lse is not None:
            token = (start + (first + short) // GROUP).to(gl.int64)
            at = lse + token * lse_row + short_head * lse_head
            gl.store(at, weight / LOG2E, mask=short < rows_left)
    else:
        kept = slot.to(gl.int64) * q_smem.shape[0] * HALF
        gl.store(parts + (kept + row)[:, None] * DIM + column[None, :], acc, mask=mask)
        gl.store(weights + kept + short, weight, mask=short < rows_left)


@gluon.jit
def _consume_others(
    block, WHICH: gl.constexpr, DIM: gl.constexpr, WINDOW: gl.constexpr, CAPPED: gl.constexpr,
    GROUP: gl.constexpr, DEPENDENT: gl.constexpr,
):  # fmt: skip
    """The rows after those of the first warp group, if there are any."""
    _, _, item, _, q_smem, _, _, _ = block
    if item[2] > WHICH * q_smem.shape[1]:
        _consume(block, WHICH, DIM, WINDOW, CAPPED, GROUP, DEPENDENT)


@gluon.jit(do_not_specialize=["room"])
def prefill_hopper(
    q, tree, part, part_lse, k_desc, v_desc, out, parts, weights, lse, counts, items, block_table,
    sinks, k_scale, v_scale, factor, cap, room, table_row, part_row, part_lse_row, q_row, q_head,
    out_row, out_head, lse_row, lse_head, k_rows, v_rows, k_apart, v_apart,
    GROUP: gl.constexpr, PAGE: gl.constexpr, BOX: gl.constexpr, TILE: gl.constexpr,
    DIM: gl.constexpr, WIDTH: gl.constexpr, HALF: gl.constexpr, STAGES: gl.constexpr,
    WINDOW: gl.constexpr, CAPPED: gl.constexpr, COPIERS: gl.constexpr, DEPENDENT: gl.constexpr,
    GROUPS: gl.constexpr,
):  # fmt: skip
    """Attend one item: `GROUPS` times 64 query rows of one KV head, or fewer.

    Heads of keys and values have `WIDTH` columns, `DIM` of them of use. `DEPENDENT`: starts while
    the kernel that makes the other part ends.
    """
    COLUMNS: gl.constexpr = k_desc.block_type.shape[1]
    count = gl.load(counts)
    items += gl.program_id(0) * FIELDS
    start = gl.load(items)
    new = gl.load(items + 1)
    length = gl.load(items + 2)
    request = gl.load(items + 3)
    first = gl.load(items + 4)
    low = gl.load(items + 5)
    end = gl.load(items + 6)
    slot = gl.load(items + 7)
    kv_head = gl.load(items + 8)
    cached = gl.load(items + 9)
    # Both reads take the time of one: the list has an entry for each program.
    if gl.program_id(0) >= count:
        return
    rows_left = new * GROUP - first
    inner_low, inner_end = _inner(
        cached, new, first, low, end, GROUP, GROUPS * HALF, WINDOW, TILE, tree is not None
    )
    slot = gl.where(slot < 0, slot, kv_head * room + slot)
    q_smem = gl.allocate_shared_memory(k_desc.dtype, [GROUPS, HALF, COLUMNS], k_desc.layout)
    k_smem = gl.allocate_shared_memory(k_desc.dtype, [STAGES, TILE, COLUMNS], k_desc.layout)
    v_smem = gl.allocate_shared_memory(v_desc.dtype, [STAGES, TILE, COLUMNS], v_desc.layout)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        if rows_left > 2 * HALF:
            mbarrier.init(k_empty.index(i), count=GROUPS)
            mbarrier.init(v_empty.index(i), count=GROUPS)
        elif rows_left > HALF:
            mbarrier.init(k_empty.index(i), count=2)
            mbarrier.init(v_empty.index(i), count=2)
        else:
            mbarrier.init(k_empty.index(i), count=1)
            mbarrier.init(v_empty.index(i), count=1)
    fence_async_shared()
    barrier()
    ring = (k_smem, v_smem, k_full, k_empty, v_full, v_empty)
    tiles = (low, inner_low, inner_end, end)
    table = block_table + request.to(gl.int64) * table_row
    more = (tree, part, part_lse, part_row, part_lse_row)
    kv_column = kv_head * WIDTH
    if k_scale is not None:
        factor *= gl.load(k_scale + kv_head)
    tensors = (q, more, out, parts, weights, lse, sinks, v_scale)
    strides = (q_row, q_head, out_row, out_head, lse_row, lse_head)
    item = (start, first, rows_left, cached, kv_head, slot, length)
    block = (tensors, strides, item, tiles, q_smem, ring, factor, cap)
    wanted = (table, kv_column, length, low, end)
    keys = (k_desc, k_smem, k_full, k_empty, k_rows, k_apart)
    values = (v_desc, v_smem, v_full, v_empty, v_rows, v_apart)
    gdc_launch_dependents()
    if GROUPS == 3:
        gl.warp_specialize(
            [
                (_consume, (block, gl.constexpr(0), DIM, WINDOW, CAPPED, GROUP, DEPENDENT)),
                (_consume_others, (block, gl.constexpr(1), DIM, WINDOW, CAPPED, GROUP, DEPENDENT)),
                (_consume_others, (block, gl.constexpr(2), DIM, WINDOW, CAPPED, GROUP, DEPENDENT)),
                (_copy_pages, (keys, wanted, PAGE, BOX)),
                (_copy_pages, (values, wanted, PAGE, BOX)),
            ],
            [4, 4, COPIERS, COPIERS],
            [160, 160, 24, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (block, gl.constexpr(0), DIM, WINDOW, CAPPED, GROUP, DEPENDENT)),
                (_consume_others, (block, gl.constexpr(1), DIM, WINDOW, CAPPED, GROUP, DEPENDENT)),
                (_copy_pages, (keys, wanted, PAGE, BOX)),
                (_copy_pages, (values, wanted, PAGE, BOX)),
            ],
            [4, COPIERS, COPIERS],
            [240, 24, 24],
        )
