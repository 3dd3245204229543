"""Paged prefill attention for Hopper, without a copy of the context.

One or two warps copy keys and as many values, by the tensor memory unit from their pages straight
into the tiles of a ring in shared memory, as many copies a tile as it has pages. A copy takes one
instruction for each 64 columns; two warps share them. Two warp groups attend 64 query rows each. A
warp group starts the scores of a tile, then the values of the tile before, and works on its softmax
while the tensor cores are busy with the values. Tiles go from the newest to the oldest: the few
that need a mask come first, and so does the one with rows that do not exist.

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

from kvproof.kernels.gluon import async_load, barrier
from kvproof.kernels.paged_prefill.grid import Grid

LOG2E = gl.constexpr(1.4426950408889634)
_DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


def descriptor(tensor: torch.Tensor, grid: Grid, box: tuple[int, int]) -> TensorDescriptor:
    """A tensor as the rows of its grid; a copy moves `box`."""
    size = tensor.element_size()
    shape, strides = [grid.rows, grid.heads * grid.head // size], [grid.apart // size, 1]
    layout = gl.NVMMASharedLayout.get_default_for(box, _DTYPES[tensor.dtype])
    return TensorDescriptor(tensor, shape, strides, list(box), layout)


@gluon.jit
def _ranges(
    new, length, row,
    WINDOW: gl.constexpr, ROWS: gl.constexpr, TILE: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    """Tiles from `low` to `end` of this split; those in [inner_low, inner_end) need no mask.

    The first tile of a split is always masked.
    """
    seen = length - new + row
    end = (gl.minimum(seen + ROWS, length) + TILE - 1) // TILE
    low = gl.to_tensor(0)
    inner_low = gl.to_tensor(0)
    if WINDOW > 0:
        low = gl.maximum(seen - WINDOW + 1, 0) // TILE
        inner_low = (gl.maximum(seen + ROWS - WINDOW, 0) + TILE - 1) // TILE
    inner_end = (seen + 1) // TILE
    if SPLITS > 1:
        share = (end - low + SPLITS - 1) // SPLITS
        end = end - gl.program_id(1) * share
        low = gl.maximum(low, end - share)
    inner_low = gl.minimum(gl.maximum(inner_low, low), end - 1)
    inner_end = gl.minimum(gl.maximum(inner_end, inner_low), end - 1)
    return low, inner_low, inner_end, end


@gluon.jit
def _copy_pages(
    desc, table, smem, full, empty, column, length, rows, apart, low, end,
    PAGE: gl.constexpr, BOX: gl.constexpr,
):  # fmt: skip
    """Copy K or V, tile by tile, as the stages of its ring become free."""
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
def _copy_queries_and_keys(
    q_desc, q_smem, q_full, q_row, q_column,
    desc, table, smem, full, empty, column, length, rows, apart, low, end,
    PAGE: gl.constexpr, BOX: gl.constexpr,
):  # fmt: skip
    HALF: gl.constexpr = q_smem.shape[1]
    mbarrier.expect(q_full, 2 * HALF * q_smem.shape[2] * 2)
    async_load(q_desc, [q_row, q_column], q_full, q_smem.index(0))
    async_load(q_desc, [q_row + HALF, q_column], q_full, q_smem.index(1))
    _copy_pages(desc, table, smem, full, empty, column, length, rows, apart, low, end, PAGE, BOX)


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
def _zero_padding(q_tile, DIM: gl.constexpr):
    """Zero the columns of a query tile that belong to the next head, in K and V too."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    column = gl.arange(0, q_tile.shape[1], gl.SliceLayout(0, layout))
    q_tile.store(gl.where((column < DIM)[None, :], q_tile.load(layout), 0.0))
    fence_async_shared()
    barrier()


@gluon.jit
def _weights(
    s, top, total, tile, seen, length, factor, cap,
    WINDOW: gl.constexpr, CAPPED: gl.constexpr, layout: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Unnormalised weights of one tile of scores, and the factor for the earlier ones."""
    HALF: gl.constexpr = s.shape[0]
    TILE: gl.constexpr = s.shape[1]
    if CAPPED:
        s = cap - 2.0 * cap / (1.0 + gl.exp2(s * (factor / cap * 2.0 * LOG2E)))
        scale = LOG2E
    else:
        scale = factor * LOG2E
    if MASKED:
        own = seen + gl.arange(0, HALF, gl.SliceLayout(1, layout))[:, None]
        key = tile * TILE + gl.arange(0, TILE, gl.SliceLayout(0, layout))[None, :]
        visible = (key <= own) & (key < length)
        if WINDOW > 0:
            visible = visible & (key > own - WINDOW)
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
def _step(
    state, tile, i, q_kept, q_tile, ring, place, factor, cap, WINDOW: gl.constexpr,
    CAPPED: gl.constexpr, s_layout: gl.constexpr, o_layout: gl.constexpr, KEPT: gl.constexpr,
    MASKED: gl.constexpr,
):  # fmt: skip
    """Scores of the `i`-th tile, and their weights while those of the tile before are applied."""
    acc, p, shrink, top, total = state
    k_smem, v_smem, k_full, k_empty, v_full, v_empty = ring
    seen, length, low = place
    STAGES: gl.constexpr = k_smem.shape[0]
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    stage = i % STAGES
    before = (i - 1) % STAGES
    s = _start_scores(q_kept, q_tile, k_smem.index(stage), s_layout, KEPT)
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, o_layout))[:, None]
    mbarrier.wait(v_full.index(before), ((i - 1) // STAGES) & 1)
    acc = warpgroup_mma(p, v_smem.index(before), acc, is_async=True)
    s = warpgroup_mma_wait(1, deps=[s])
    mbarrier.arrive(k_empty.index(stage))
    w, top, total, shrink = _weights(
        s, top, total, tile, seen, length, factor, cap, WINDOW, CAPPED, s_layout, MASKED
    )
    # This wait also keeps ptxas from moving the next one above the softmax: it ends a basic block.
    after = i + 1
    mbarrier.wait(k_full.index(after % STAGES), (after // STAGES) & 1, pred=tile > low)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(v_empty.index(before))
    return acc, gl.convert_layout(w.to(q_tile.dtype), p_layout), shrink, top, total


@gluon.jit
def _consume(
    out, weights, sinks, v_scale, q_smem, q_full, ring, q_row, head, heads, rows_left, seen,
    length, tiles, out_row, out_head, factor, cap,
    WHICH: gl.constexpr, DIM: gl.constexpr, WINDOW: gl.constexpr, CAPPED: gl.constexpr,
    GROUP: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
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
    seen = seen + WHICH * HALF
    top = gl.full([HALF], float("-inf"), gl.float32, gl.SliceLayout(1, s_layout))
    total = gl.zeros([HALF], gl.float32, gl.SliceLayout(1, s_layout))
    acc = gl.zeros([HALF, COLUMNS], gl.float32, o_layout)

    mbarrier.wait(q_full, 0)
    if DIM < COLUMNS:
        _zero_padding(q_tile, DIM)
    mbarrier.wait(k_full.index(0), 0)
    q_kept = 0
    if KEPT > 0:
        q_kept = q_tile.slice(0, KEPT, 1).load(gl.DotOperandLayout(0, s_layout, 2))
    s = _start_scores(q_kept, q_tile, k_smem.index(0), s_layout, KEPT)
    s = warpgroup_mma_wait(0, deps=[s])
    mbarrier.arrive(k_empty.index(0))
    tile = end - 1
    w, top, total, shrink = _weights(
        s, top, total, tile, seen, length, factor, cap, WINDOW, CAPPED, s_layout, MASKED=True
    )
    p = gl.convert_layout(w.to(q_smem.dtype), p_layout)
    if end * TILE > length:
        mbarrier.wait(v_full.index(0), 0)
        _zero_beyond(v_smem.index(0), tile * TILE, length)
    mbarrier.wait(k_full.index(1 % STAGES), (1 // STAGES) & 1, pred=tile > low)
    place = (seen, length, low)
    for tile in range(end - 2, inner_end - 1, -1):
        state = (acc, p, shrink, top, total)
        acc, p, shrink, top, total = _step(
            state, tile, end - 1 - tile, q_kept, q_tile, ring, place, factor, cap,
            WINDOW, CAPPED, s_layout, o_layout, KEPT, MASKED=True,
        )  # fmt: skip
    for tile in range(inner_end - 1, inner_low - 1, -1):
        state = (acc, p, shrink, top, total)
        acc, p, shrink, top, total = _step(
            state, tile, end - 1 - tile, q_kept, q_tile, ring, place, factor, cap,
            WINDOW, CAPPED, s_layout, o_layout, KEPT, MASKED=False,
        )  # fmt: skip
    if WINDOW > 0:
        for tile in range(inner_low - 1, low - 1, -1):
            state = (acc, p, shrink, top, total)
            acc, p, shrink, top, total = _step(
                state, tile, end - 1 - tile, q_kept, q_tile, ring, place, factor, cap,
                WINDOW, CAPPED, s_layout, o_layout, KEPT, MASKED=True,
            )  # fmt: skip
    last = end - 1 - low
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, o_layout))[:, None]
    mbarrier.wait(v_full.index(last % STAGES), (last // STAGES) & 1)
    acc = warpgroup_mma(p, v_smem.index(last % STAGES), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])
    scale = LOG2E if CAPPED else factor * LOG2E
    if sinks is not None and SPLITS == 1:
        total += gl.exp2(gl.load(sinks + head) * LOG2E - top * scale)
    row = WHICH * HALF + gl.arange(0, HALF, gl.SliceLayout(1, o_layout))
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, o_layout))
    mask = (row < rows_left)[:, None] & (column < DIM)[None, :]
    if SPLITS > 1:
        # Rows that see nothing of this split weigh nothing when the splits are combined.
        weight = gl.where(total > 0.0, top * scale + gl.log2(total), float("-inf"))
        total = gl.where(total > 0.0, total, 1.0)
        short = WHICH * HALF + gl.arange(0, HALF, gl.SliceLayout(1, s_layout))
        gl.store(weights + (q_row + short) * heads + head, weight, mask=short < rows_left)
    if v_scale is not None:
        acc = acc * gl.load(v_scale + head // GROUP)
    acc = acc / gl.convert_layout(total, gl.SliceLayout(1, o_layout))[:, None]
    where = out + (q_row + row).to(gl.int64)[:, None] * out_row + head * out_head + column[None, :]
    gl.store(where, acc.to(out.dtype.element_ty), mask=mask)


@gluon.jit
def _leave_nothing(weights, first, rows_left, head, heads, ROWS: gl.constexpr):
    """A split without tiles has no weight; its values are never read."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    row = gl.arange(0, ROWS, layout)
    nothing = gl.full([ROWS], float("-inf"), gl.float32, layout)
    gl.store(weights + (first + row) * heads + head, nothing, mask=row < rows_left)


@gluon.jit
def _request_of(block, query_starts, batch, ROWS: gl.constexpr):
    """The request of a block of query rows; each request ends with a spare block."""
    low = 0
    high = batch
    while high - low > 1:
        middle = (low + high) // 2
        if gl.load(query_starts + middle) // ROWS + middle <= block:
            low = middle
        else:
            high = middle
    return low


@gluon.jit(do_not_specialize=["batch", "heads"])
def prefill_hopper(
    q_desc, k_desc, v_desc, out, weights, block_table, lengths, query_starts, sinks,
    k_scale, v_scale, factor, cap,
    batch, heads, split_rows, table_row, out_row, out_head, k_rows, v_rows, k_apart, v_apart,
    GROUP: gl.constexpr, PAGE: gl.constexpr, BOX: gl.constexpr, TILE: gl.constexpr,
    DIM: gl.constexpr, STAGES: gl.constexpr, WINDOW: gl.constexpr, CAPPED: gl.constexpr,
    SPLITS: gl.constexpr, TOGETHER: gl.constexpr, COPIERS: gl.constexpr,
):  # fmt: skip
    """Attend two times 64 query rows of one head."""
    HALF: gl.constexpr = q_desc.block_type.shape[0]
    COLUMNS: gl.constexpr = q_desc.block_type.shape[1]
    ROWS: gl.constexpr = 2 * HALF
    # Some heads at a time go through all blocks, so that their K and V stay in the L2 cache. The
    # last blocks of a request see the most context, so they start first.
    blocks = gl.num_programs(0) // heads
    outer = gl.program_id(0) // TOGETHER
    head = outer // blocks * TOGETHER + gl.program_id(0) % TOGETHER
    block = blocks - 1 - outer % blocks
    request = _request_of(block, query_starts, batch, ROWS)
    start = gl.load(query_starts + request)
    new = gl.load(query_starts + request + 1) - start
    length = gl.load(lengths + request)
    row = (block - (start // ROWS + request)) * ROWS
    if row >= new:
        return
    low, inner_low, inner_end, end = _ranges(new, length, row, WINDOW, ROWS, TILE, SPLITS)
    if SPLITS > 1:
        # A split writes a slice of [splits, tokens, heads, dim] and of [splits, tokens, heads].
        out += gl.program_id(1).to(gl.int64) * split_rows * out_row
        weights += gl.program_id(1).to(gl.int64) * split_rows * heads
        if low >= end:
            _leave_nothing(weights, start + row, new - row, head, heads, ROWS)
            return
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [2, HALF, COLUMNS], q_desc.layout)
    k_smem = gl.allocate_shared_memory(k_desc.dtype, [STAGES, TILE, COLUMNS], k_desc.layout)
    v_smem = gl.allocate_shared_memory(v_desc.dtype, [STAGES, TILE, COLUMNS], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=2)
        mbarrier.init(v_empty.index(i), count=2)
    fence_async_shared()
    barrier()
    ring = (k_smem, v_smem, k_full, k_empty, v_full, v_empty)
    tiles = (low, inner_low, inner_end, end)
    q_row, seen = start + row, length - new + row
    table = block_table + request.to(gl.int64) * table_row
    kv_column = head // GROUP * DIM
    if k_scale is not None:
        factor *= gl.load(k_scale + head // GROUP)
    gl.warp_specialize(
        [
            (
                _consume,
                (
                    out, weights, sinks, v_scale, q_smem, q_full, ring, q_row, head, heads,
                    new - row, seen, length, tiles, out_row, out_head, factor, cap,
                    gl.constexpr(0), DIM, WINDOW, CAPPED, GROUP, SPLITS,
                ),
            ),
            (
                _consume,
                (
                    out, weights, sinks, v_scale, q_smem, q_full, ring, q_row, head, heads,
                    new - row, seen, length, tiles, out_row, out_head, factor, cap,
                    gl.constexpr(1), DIM, WINDOW, CAPPED, GROUP, SPLITS,
                ),
            ),
            (
                _copy_queries_and_keys,
                (
                    q_desc, q_smem, q_full, q_row, head * DIM,
                    k_desc, table, k_smem, k_full, k_empty, kv_column, length, k_rows, k_apart,
                    low, end, PAGE, BOX,
                ),
            ),
            (
                _copy_pages,
                (
                    v_desc, table, v_smem, v_full, v_empty, kv_column, length, v_rows, v_apart,
                    low, end, PAGE, BOX,
                ),
            ),
        ],
        [4, COPIERS, COPIERS],
        [240, 24, 24],
    )  # fmt: skip
