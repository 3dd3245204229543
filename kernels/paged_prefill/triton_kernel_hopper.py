"""Paged prefill attention for Hopper, without a copy of the context.

Every multiprocessor has one program, which attends one item after the other, as it takes them. One
or two warps copy keys and as many values, by the tensor memory unit from their pages straight
into the tiles of a ring in shared memory, as many copies a tile as it has pages. A copy takes one
instruction for each 64 columns; two warps share them. They are at the next item before the rows of
the last are stored. Two or three warp groups attend 64 query rows each. A warp group starts the
scores of a tile, then the values of the tile before, and works on its softmax while the tensor
cores are busy with the values. Tiles go from the newest to the oldest: the few that need a mask
come first, and so does the one with rows that do not exist. Of 64 query rows or fewer, as decoding
requests have, one warp group attends alone.

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
from triton.language.extra.cuda import gdc_launch_dependents

from kvproof.kernels.gluon import barrier
from kvproof.kernels.grid import Grid
from kvproof.kernels.paged_prefill.triton_kernel_hopper_copy import copy_pages
from kvproof.kernels.paged_prefill.triton_kernel_hopper_items import (
    CACHED,
    END,
    FIRST,
    KV_HEAD,
    LENGTH,
    LOW,
    NEW,
    SLOT,
    START,
    next_number,
    number_of,
    numbers_of_items,
)
from kvproof.kernels.paged_prefill.triton_kernel_hopper_rows import (
    keep,
    loaded,
    store,
    zero_beyond,
)
from kvproof.kernels.paged_prefill.triton_kernel_hopper_scores import (
    apart,
    inner,
    paired,
    start_scores,
    step,
    weights_of,
)

_DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


def descriptor(tensor: torch.Tensor, grid: Grid, box: tuple[int, int]) -> TensorDescriptor:
    """A tensor as the rows of its grid; a copy moves `box`."""
    size = tensor.element_size()
    shape, strides = [grid.rows, grid.heads * grid.head // size], [grid.apart // size, 1]
    layout = gl.NVMMASharedLayout.get_default_for(box, _DTYPES[tensor.dtype])
    return TensorDescriptor(tensor, shape, strides, list(box), layout)


@gluon.jit
def _item(listed, n, room, GROUP: gl.constexpr):
    """The `n`-th item of this program."""
    start = number_of(listed, n, START, 4)
    new = number_of(listed, n, NEW, 4)
    length = number_of(listed, n, LENGTH, 4)
    first = number_of(listed, n, FIRST, 4)
    slot = number_of(listed, n, SLOT, 4)
    kv_head = number_of(listed, n, KV_HEAD, 4)
    cached = number_of(listed, n, CACHED, 4)
    slot = gl.where(slot < 0, slot, kv_head * room + slot)
    return start, first, new * GROUP - first, cached, kv_head, slot, length


@gluon.jit
def _queries(
    block, n, WHICH: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, HALF: gl.constexpr,
    COLUMNS: gl.constexpr,
):  # fmt: skip
    """The rows of a warp group in the `n`-th item."""
    tensors, strides, listed, room, _, _, _ = block
    start, first, rows_left, _, kv_head, _, _ = _item(listed, n, room, GROUP)
    return loaded(
        tensors[0], start, first, rows_left, kv_head, strides[0], strides[1], WHICH, GROUP, DIM,
        HALF, COLUMNS,
    )  # fmt: skip


@gluon.jit
def _drain(ring, turn, tiles):
    """Let the other warp groups use tiles alone."""
    _, _, k_full, k_empty, v_full, v_empty = ring
    STAGES: gl.constexpr = k_full.shape[0]
    for i in range(tiles):
        stage = (turn + i) % STAGES
        phase = ((turn + i) // STAGES) & 1
        mbarrier.wait(k_full.index(stage), phase)
        mbarrier.arrive(k_empty.index(stage))
        mbarrier.wait(v_full.index(stage), phase)
        mbarrier.arrive(v_empty.index(stage))


@gluon.jit
def _attend(
    block, turn, n, q_tile, WHICH: gl.constexpr, DIM: gl.constexpr,
    WINDOW: gl.constexpr, CAPPED: gl.constexpr, GROUP: gl.constexpr, GROUPS: gl.constexpr,
    DEPENDENT: gl.constexpr, PERSISTENT: gl.constexpr,
):  # fmt: skip
    """Attend the rows of a warp group in one item, and load those of the next."""
    tensors, strides, listed, room, ring, factor, cap = block
    start, first, rows_left, cached, _, _, length = _item(listed, n, room, GROUP)
    new = number_of(listed, n, NEW, 4)
    low = number_of(listed, n, LOW, 4)
    end = number_of(listed, n, END, 4)
    k_smem, v_smem, k_full, k_empty, v_full, v_empty = ring
    STAGES: gl.constexpr = k_smem.shape[0]
    TILE: gl.constexpr = k_smem.shape[1]
    COLUMNS: gl.constexpr = k_smem.shape[2]
    HALF: gl.constexpr = q_tile.shape[0]
    # Of wide rows half the columns of the queries stay in registers: with all operands of the
    # scores in shared memory its bandwidth is used up by them, the values and the copies.
    KEPT: gl.constexpr = COLUMNS // 2 if COLUMNS > 128 else 0
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    short = WHICH * HALF + gl.arange(0, HALF, gl.SliceLayout(1, s_layout))
    own = cached + (first + short) // GROUP
    tree = tensors[1][0]
    k_scale = tensors[8]
    if k_scale is not None:
        factor = factor * gl.load(k_scale + number_of(listed, n, KV_HEAD, 4))
    TREE: gl.constexpr = tree is not None
    bits = own
    if TREE:
        bits = gl.load(tree + start + (first + short) // GROUP, mask=short < rows_left, other=0)
    inner_low, inner_end = inner(
        cached, new, first, low, end, GROUP, GROUPS * HALF, WINDOW, TILE, TREE
    )
    place = (own, length, low, cached, bits)
    top = gl.full([HALF], float("-inf"), gl.float32, gl.SliceLayout(1, s_layout))
    total = gl.zeros([HALF], gl.float32, gl.SliceLayout(1, s_layout))
    acc = gl.zeros([HALF, COLUMNS], gl.float32, o_layout)
    mbarrier.wait(k_full.index(turn % STAGES), (turn // STAGES) & 1)
    q_kept = 0
    if KEPT > 0:
        q_kept = q_tile.slice(0, KEPT, 1).load(gl.DotOperandLayout(0, s_layout, 2))
    s = start_scores(q_kept, q_tile, k_smem.index(turn % STAGES), s_layout, KEPT)
    s = warpgroup_mma_wait(0, deps=[s])
    mbarrier.arrive(k_empty.index(turn % STAGES))
    tile = end - 1
    w, top, total, shrink = weights_of(
        s, top, total, tile, place, factor, cap, WINDOW, CAPPED, TREE, s_layout, MASKED=True
    )
    HALVES: gl.constexpr = "bf16" if q_tile.dtype == gl.bfloat16 else "f16"
    pairs = paired(w, HALVES)
    if end * TILE > length:
        mbarrier.wait(v_full.index(turn % STAGES), (turn // STAGES) & 1)
        zero_beyond(v_smem.index(turn % STAGES), tile * TILE, length)
    mbarrier.wait(k_full.index((turn + 1) % STAGES), ((turn + 1) // STAGES) & 1, pred=tile > low)
    for tile in range(end - 2, inner_end - 1, -1):
        state = (acc, pairs, shrink, top, total)
        acc, pairs, shrink, top, total = step(
            state, tile, turn + end - 1 - tile, q_kept, q_tile, ring, place, factor, cap,
            WINDOW, CAPPED, TREE, s_layout, o_layout, KEPT, MASKED=True,
        )  # fmt: skip
    for tile in range(inner_end - 1, inner_low - 1, -1):
        state = (acc, pairs, shrink, top, total)
        acc, pairs, shrink, top, total = step(
            state, tile, turn + end - 1 - tile, q_kept, q_tile, ring, place, factor, cap,
            WINDOW, CAPPED, TREE, s_layout, o_layout, KEPT, MASKED=False,
        )  # fmt: skip
    if WINDOW > 0:
        for tile in range(inner_low - 1, low - 1, -1):
            state = (acc, pairs, shrink, top, total)
            acc, pairs, shrink, top, total = step(
                state, tile, turn + end - 1 - tile, q_kept, q_tile, ring, place, factor,
                cap, WINDOW, CAPPED, TREE, s_layout, o_layout, KEPT, MASKED=True,
            )  # fmt: skip
    last = turn + end - 1 - low
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, o_layout))[:, None]
    mbarrier.wait(v_full.index(last % STAGES), (last // STAGES) & 1)
    p = apart(pairs, q_tile.dtype, p_layout)
    acc = warpgroup_mma(p, v_smem.index(last % STAGES), acc, is_async=True)
    # The rows of the next item arrive meanwhile.
    if PERSISTENT:
        more = next_number(listed, n + 1, 4) < listed[1]
        rows = _queries(block, n + 1, WHICH, GROUP, DIM, HALF, COLUMNS)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(v_empty.index(last % STAGES))
    # Read again: kept, these numbers would take registers from the loops.
    item = _item(listed, n, room, GROUP)
    store(
        acc, top, total, tensors, strides, item, q_tile, factor, s_layout, o_layout, CAPPED, WHICH,
        GROUP, GROUPS, DIM, DEPENDENT,
    )  # fmt: skip
    if PERSISTENT:  # noqa: SIM102 - the compiler decides it, the program the other
        if more:
            barrier()
            keep(q_tile, rows)


@gluon.jit
def _attend_or_drain(
    block, turn, n, q_tile, WHICH: gl.constexpr, DIM: gl.constexpr, WINDOW: gl.constexpr,
    CAPPED: gl.constexpr, GROUP: gl.constexpr, GROUPS: gl.constexpr, DEPENDENT: gl.constexpr,
    PERSISTENT: gl.constexpr,
):  # fmt: skip
    """Attend the rows of a warp group in an item, if it has any; the number of tiles."""
    _, _, listed, _, ring, _, _ = block
    HALF: gl.constexpr = q_tile.shape[0]
    COLUMNS: gl.constexpr = q_tile.shape[1]
    tiles = number_of(listed, n, END, 4) - number_of(listed, n, LOW, 4)
    rows_left = number_of(listed, n, NEW, 4) * GROUP - number_of(listed, n, FIRST, 4)
    if rows_left > WHICH * HALF:
        _attend(
            block, turn, n, q_tile, WHICH, DIM, WINDOW, CAPPED, GROUP, GROUPS, DEPENDENT,
            PERSISTENT,
        )  # fmt: skip
    else:
        _drain(ring, turn, tiles)
        if PERSISTENT:  # noqa: SIM102 - likewise
            if next_number(listed, n + 1, 4) < listed[1]:
                keep(q_tile, _queries(block, n + 1, WHICH, GROUP, DIM, HALF, COLUMNS))
    return tiles


@gluon.jit
def _attend_all(
    block, q_smem, WHICH: gl.constexpr, DIM: gl.constexpr, WINDOW: gl.constexpr,
    CAPPED: gl.constexpr, GROUP: gl.constexpr, GROUPS: gl.constexpr, DEPENDENT: gl.constexpr,
    PERSISTENT: gl.constexpr,
):  # fmt: skip
    """Attend the rows of a warp group in all items of this program."""
    listed = block[2]
    q_tile = q_smem.index(WHICH)
    n = gl.to_tensor(0)
    number = next_number(listed, n, 4)
    keep(q_tile, _queries(block, n, WHICH, GROUP, DIM, q_smem.shape[1], q_smem.shape[2]))
    if PERSISTENT:
        turn = gl.to_tensor(0)
        while number < listed[1]:
            turn += _attend_or_drain(
                block, turn, n, q_tile, WHICH, DIM, WINDOW, CAPPED, GROUP, GROUPS, DEPENDENT,
                PERSISTENT,
            )  # fmt: skip
            n += 1
            number = next_number(listed, n, 4)
    else:
        _attend_or_drain(
            block, 0, n, q_tile, WHICH, DIM, WINDOW, CAPPED, GROUP, GROUPS, DEPENDENT, PERSISTENT
        )


@gluon.jit(do_not_specialize=["room"])
def prefill_hopper(
    q, tree, part, part_lse, k_desc, v_desc, out, parts, weights, lse, counts, items, block_table,
    sinks, k_scale, v_scale, factor, cap, room, table_row, part_row, part_lse_row, q_row, q_head,
    out_row, out_head, lse_row, lse_head, k_rows, v_rows, k_apart, v_apart,
    GROUP: gl.constexpr, PAGE: gl.constexpr, BOX: gl.constexpr, TILE: gl.constexpr,
    DIM: gl.constexpr, WIDTH: gl.constexpr, HALF: gl.constexpr, STAGES: gl.constexpr,
    WINDOW: gl.constexpr, CAPPED: gl.constexpr, COPIERS: gl.constexpr, DEPENDENT: gl.constexpr,
    GROUPS: gl.constexpr, PERSISTENT: gl.constexpr,
):  # fmt: skip
    """Attend items, each `GROUPS` times 64 query rows of one KV head, or fewer.

    Heads of keys and values have `WIDTH` columns, `DIM` of them of use. `DEPENDENT`: starts while
    the kernel that makes the other part ends.
    """
    COLUMNS: gl.constexpr = k_desc.block_type.shape[1]
    count = gl.load(counts)
    if gl.program_id(0) >= count:
        return
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
        mbarrier.init(k_empty.index(i), count=GROUPS)
        mbarrier.init(v_empty.index(i), count=GROUPS)
    numbers, ready = numbers_of_items()
    fence_async_shared()
    barrier()
    listed = (items, count, numbers, ready)
    ring = (k_smem, v_smem, k_full, k_empty, v_full, v_empty)
    more = (tree, part, part_lse, part_row, part_lse_row)
    tensors = (q, more, out, parts, weights, lse, sinks, v_scale, k_scale)
    strides = (q_row, q_head, out_row, out_head, lse_row, lse_head)
    block = (tensors, strides, listed, room, ring, factor, cap)
    tables = (block_table, table_row)
    keys = (k_desc, k_smem, k_full, k_empty, k_rows, k_apart)
    values = (v_desc, v_smem, v_full, v_empty, v_rows, v_apart)
    gdc_launch_dependents()
    if GROUPS == 3:
        gl.warp_specialize(
            [
                (
                    _attend_all,
                    (
                        block, q_smem, gl.constexpr(0), DIM, WINDOW, CAPPED, GROUP, GROUPS,
                        DEPENDENT, PERSISTENT,
                    ),
                ),
                (
                    _attend_all,
                    (
                        block, q_smem, gl.constexpr(1), DIM, WINDOW, CAPPED, GROUP, GROUPS,
                        DEPENDENT, PERSISTENT,
                    ),
                ),
                (
                    _attend_all,
                    (
                        block, q_smem, gl.constexpr(2), DIM, WINDOW, CAPPED, GROUP, GROUPS,
                        DEPENDENT, PERSISTENT,
                    ),
                ),
                (
                    copy_pages,
                    (
                        keys, listed, tables, PAGE, BOX, WIDTH, COPIERS, gl.constexpr(1),
                        PERSISTENT,
                    ),
                ),
                (
                    copy_pages,
                    (
                        values, listed, tables, PAGE, BOX, WIDTH, COPIERS, gl.constexpr(0),
                        PERSISTENT,
                    ),
                ),
            ],
            [4, 4, COPIERS, COPIERS],
            [160, 160, 24, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (
                    _attend_all,
                    (
                        block, q_smem, gl.constexpr(0), DIM, WINDOW, CAPPED, GROUP, GROUPS,
                        DEPENDENT, PERSISTENT,
                    ),
                ),
                (
                    _attend_all,
                    (
                        block, q_smem, gl.constexpr(1), DIM, WINDOW, CAPPED, GROUP, GROUPS,
                        DEPENDENT, PERSISTENT,
                    ),
                ),
                (
                    copy_pages,
                    (
                        keys, listed, tables, PAGE, BOX, WIDTH, COPIERS, gl.constexpr(1),
                        PERSISTENT,
                    ),
                ),
                (
                    copy_pages,
                    (
                        values, listed, tables, PAGE, BOX, WIDTH, COPIERS, gl.constexpr(0),
                        PERSISTENT,
                    ),
                ),
            ],
            [4, COPIERS, COPIERS],
            [240, 24, 24],
        )  # fmt: skip
