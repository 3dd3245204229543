"""Latent decode attention for Hopper over pages of FP8 rows with one scale for all.

One warp copies rows as they are, one warp group finds scores and weights, and two add values, half
of the columns each. Values are widened to bfloat16 in registers, which only the left operand of a
product may come from: so answers are found transposed, columns by query rows. A thread has pairs of
bytes, so even and odd columns have accumulators of their own.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents

from kvproof.kernels.gluon import async_load, barrier, reinterpreted
from kvproof.kernels.latent.triton_kernel_attend import LOG2E, ROWS
from kvproof.kernels.latent.triton_kernel_chunks import TILE, part_of_program, span, tiles_of
from kvproof.kernels.latent.triton_kernel_copy import pages_of
from kvproof.kernels.latent.triton_kernel_fp8_scores import KEYS, ROPE, VALUES, score

PAIRS = gl.constexpr(256)
"""Pairs of value columns of a row."""

QUARTER = gl.constexpr(64)
"""Pairs of value columns that an accumulator has, and one row of swizzled shared memory."""

STEP = gl.constexpr(32)
"""Tokens of one product with values."""

T_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
T_OPERAND = gl.constexpr(gl.DotOperandLayout(0, T_LAYOUT.value, 2))
T_ROW = gl.constexpr(gl.SliceLayout(0, T_LAYOUT.value))


@gluon.jit
def _widened(pairs):
    """Even and odd bytes of float8_e4m3 as bfloat16, exactly but for a factor 2 ** -120."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 x, y, z;
        shl.b32 x, $2, 4;
        and.b32 x, x, 0x07f007f0;
        shl.b32 y, $2, 8;
        lop3.b32 x, y, 0x80008000, x, 0xea;
        shr.u32 z, $2, 4;
        and.b32 z, z, 0x07f007f0;
        lop3.b32 $1, $2, 0x80008000, z, 0xea;
        mov.b32 $0, x;
        }""",
        "=r,=r,r",
        [pairs],
        dtype=(gl.bfloat16, gl.bfloat16),
        is_pure=True,
        pack=2,
    )


@gluon.jit
def _packed(even, odd):
    """Pairs of answers of neighbouring columns, as 32 bits."""
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [even, odd], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def _joined(even, odd):
    """Pairs of numbers of neighbouring columns, as 64 bits."""
    return gl.inline_asm_elementwise(
        "mov.b64 $0, {$1, $2};", "=l,f,f", [even, odd], dtype=gl.int64, is_pure=True, pack=1
    )


@gluon.jit
def _wait(even, odd, even2, odd2, OUTSTANDING: gl.constexpr):
    return warpgroup_mma_wait(OUTSTANDING, deps=[even, odd, even2, odd2])


@gluon.jit
def _add_tile(
    even, odd, even2, odd2, turn, ring, links, WHICH: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """Add the values of a tile, `STEP` tokens and half of the columns at a time."""
    tiles, _, full, empty = ring
    weights, factors, ready, free = links
    shape: gl.constexpr = [TILE, PAIRS]
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    stage = turn % STAGES
    place = turn & 1
    mbarrier.wait(full.index(stage), turn // STAGES & 1)
    pairs = reinterpreted(tiles.index(stage), gl.int16, shape, layout)
    pairs = pairs.slice(WHICH * 2 * QUARTER, 2 * QUARTER, 1)
    left, right = _widened(_bits(pairs, 0, 0))
    mbarrier.wait(ready.index(place), turn // 2 & 1)
    by = factors.index(place).load(T_ROW)
    if gl.min(by, 0) < 1.0:
        even = even * by[None, :]
        odd = odd * by[None, :]
        even2 = even2 * by[None, :]
        odd2 = odd2 * by[None, :]
    for j in gl.static_range(TILE // STEP):
        by_row = weights.index(place).slice(j * STEP, STEP, 1).permute([1, 0])
        if j > 0:
            left, right = _widened(_bits(pairs, j, 0))
        even = warpgroup_mma(left, by_row, even, is_async=True)
        odd = warpgroup_mma(right, by_row, odd, is_async=True)
        if j > 0:
            even, odd, even2, odd2 = _wait(even, odd, even2, odd2, 2)
        left, right = _widened(_bits(pairs, j, 1))
        even2 = warpgroup_mma(left, by_row, even2, is_async=True)
        odd2 = warpgroup_mma(right, by_row, odd2, is_async=True)
        even, odd, even2, odd2 = _wait(
            even, odd, even2, odd2, 0 if j == TILE // STEP - 1 else 2
        )  # fmt: skip
    mbarrier.arrive(empty.index(stage))
    mbarrier.arrive(free.index(place))
    return even, odd, even2, odd2


@gluon.jit
def _bits(pairs, j: gl.constexpr, half: gl.constexpr):
    """Pairs of bytes of some tokens and columns, as the left operand of a product has them."""
    part = pairs.slice(j * STEP, STEP).slice(half * QUARTER, QUARTER, 1)
    return part.permute([1, 0]).load(T_OPERAND)


@gluon.jit
def _store(
    even, odd, share, first, out, parts, request, block, chunk, numbers, is_whole, is_end, out_row,
    HEAD_BLOCKS: gl.constexpr,
):  # fmt: skip
    """Store some columns, from the pair `first` on: of a request, or of a part of it."""
    row = gl.arange(0, ROWS, T_ROW)
    pair = first + gl.arange(0, QUARTER, gl.SliceLayout(1, T_LAYOUT))
    live = (block * ROWS + row < numbers)[None, :] & (pair >= 0)[:, None]
    if is_whole:
        target = out + (request * numbers + block * ROWS).to(gl.int64) * out_row
        target = target.to(gl.pointer_type(gl.int32))
        place = target + row[None, :] * (out_row // 2) + pair[:, None]
        gl.store(place, _packed(even * share, odd * share), mask=live)
    else:
        slot = (2 * chunk + is_end) * HEAD_BLOCKS + block
        part = (parts + slot.to(gl.int64) * (ROWS * VALUES)).to(gl.pointer_type(gl.int64))
        at = part + row[None, :] * PAIRS + pair[:, None]
        gl.store(at, _joined(even * share, odd * share), mask=live)


@gluon.jit
def _add(
    out, parts, lengths, shared, plan, chunk, block, out_row, numbers,
    HEAD_BLOCKS: gl.constexpr, STAGES: gl.constexpr, WHICH: gl.constexpr,
):  # fmt: skip
    """Half of the value columns of all tiles of a chunk."""
    begin, end, request, request_begin = plan
    ring, _, links, ends = shared
    shares, shares_ready, shares_free = ends
    turn = 0
    served = 0
    while request_begin < end:
        size = gl.load(lengths + request)
        low, high = span(size, begin, end, request_begin)
        even = gl.zeros([QUARTER, ROWS], gl.float32, T_LAYOUT)
        odd = gl.zeros([QUARTER, ROWS], gl.float32, T_LAYOUT)
        even2 = gl.zeros([QUARTER, ROWS], gl.float32, T_LAYOUT)
        odd2 = gl.zeros([QUARTER, ROWS], gl.float32, T_LAYOUT)
        for i in range(high - low):
            even, odd, even2, odd2 = _add_tile(
                even, odd, even2, odd2, turn + i, ring, links, WHICH, STAGES
            )  # fmt: skip
        turn += high - low
        mbarrier.wait(shares_ready, served & 1)
        share = shares.load(T_ROW)[None, :]
        is_whole = (low == 0) & (high == tiles_of(size))
        is_end = (low == 0).to(gl.int32)
        _store(
            even, odd, share, WHICH * 2 * QUARTER, out, parts, request, block, chunk, numbers,
            is_whole, is_end, out_row, HEAD_BLOCKS,
        )  # fmt: skip
        _store(
            even2, odd2, share, (WHICH * 2 + 1) * QUARTER, out, parts, request, block, chunk,
            numbers, is_whole, is_end, out_row, HEAD_BLOCKS,
        )  # fmt: skip
        mbarrier.arrive(shares_free)
        served += 1
        request_begin += tiles_of(size)
        request += 1


@gluon.jit
def _bring(
    k_desc, rope_desc, block_table, lengths, table_row, rows, apart, ring, plan,
    PAGE: gl.constexpr, BOX: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Copy the tiles of each request of a chunk from the newest to the oldest."""
    begin, end, request, request_begin = plan
    tiles, ropes, full, empty = ring
    turn = 0
    while request_begin < end:
        size = gl.load(lengths + request)
        low, high = span(size, begin, end, request_begin)
        limit = gl.minimum(size, high * TILE)
        table = block_table + request.to(gl.int64) * table_row
        for i in range(high - low):
            first = (high - 1 - i) * TILE
            stage = (turn + i) % STAGES
            pages = pages_of(table, first, limit, PAGE, BOX)
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), ((turn + i) // STAGES & 1) ^ 1)
            mbarrier.expect(ready, TILE * KEYS)
            for j in gl.static_range(TILE // BOX):
                at = first + j * BOX
                # Past the end of the pool the copy brings zeros.
                row = gl.where(at < limit, pages[j] * apart + at % PAGE, rows)
                async_load(k_desc, [row, 0], ready, tiles.index(stage).slice(j * BOX, BOX))
                async_load(rope_desc, [row, VALUES], ready, ropes.index(stage).slice(j * BOX, BOX))
        turn += high - low
        request_begin += tiles_of(size)
        request += 1


@gluon.jit
def _barriers(number: gl.constexpr, count: gl.constexpr):
    """Barriers, each of which waits for `count` arrivals."""
    all_of = gl.allocate_shared_memory(gl.int64, [number, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(number):
        mbarrier.init(all_of.index(i), count=count)
    return all_of


@gluon.jit
def _shared_memory(TERMS: gl.constexpr, STAGES: gl.constexpr):
    """Ring of tiles, terms of queries, tops and weights, and the sums of weights."""
    fp8: gl.constexpr = gl.float8e4nv
    wide: gl.constexpr = gl.NVMMASharedLayout(128, 8)
    narrow: gl.constexpr = gl.NVMMASharedLayout(64, 8)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ring = (
        gl.allocate_shared_memory(fp8, [STAGES, TILE, VALUES], wide),
        gl.allocate_shared_memory(fp8, [STAGES, TILE, ROPE], narrow),
        _barriers(STAGES, 1),
        _barriers(STAGES, 2),
    )
    queries = (
        gl.allocate_shared_memory(fp8, [TERMS, ROWS, VALUES], wide),
        gl.allocate_shared_memory(fp8, [TERMS, ROWS, ROPE], narrow),
        gl.allocate_shared_memory(gl.float32, [ROWS], flat),
    )
    links = (
        gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, TILE], gl.NVMMASharedLayout(2 * STEP, 16)),
        gl.allocate_shared_memory(gl.float32, [2, ROWS], flat),
        _barriers(2, 1),
        _barriers(2, 2),
    )
    ends = (gl.allocate_shared_memory(gl.float32, [ROWS], flat), _barrier(1), _barrier(2))
    fence_async_shared()
    barrier()
    return ring, queries, links, ends


@gluon.jit
def _barrier(count: gl.constexpr):
    one = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(one, count=count)
    return one


@gluon.jit(do_not_specialize=["batch", "chunks"])
def latent_decode_fp8(
    k_desc, rope_desc, pages_scale, q, out, lse, parts, norms, sinks, block_table, lengths, scale,
    batch, chunks, table_row, out_row, rows, apart,
    HEADS: gl.constexpr, Q_TOKENS: gl.constexpr, HEAD_BLOCKS: gl.constexpr, BATCH: gl.constexpr,
    LEAST: gl.constexpr, PAGE: gl.constexpr, BOX: gl.constexpr, TERMS: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """One chunk of the batch for 64 query rows; grid: chunks * HEAD_BLOCKS.

    `pages_scale` is one float32. `parts` and `norms` are those of `latent_decode_hopper`.
    """
    gdc_launch_dependents()
    has_work, chunk, block, plan = part_of_program(
        lengths, batch, chunks, HEAD_BLOCKS, BATCH, LEAST, 0
    )  # fmt: skip
    if not has_work:
        return
    shared = _shared_memory(TERMS, STAGES)
    factor = gl.load(pages_scale)
    log_scale = scale * LOG2E * factor
    numbers = Q_TOKENS * HEADS + 0
    gl.warp_specialize(
        [
            (
                score,
                (
                    q, lse, norms, sinks, lengths, log_scale, factor, shared, plan, chunk, block,
                    HEADS, Q_TOKENS, HEAD_BLOCKS, TERMS, STAGES,
                ),
            ),
            (
                _add,
                (
                    out, parts, lengths, shared, plan, chunk, block, out_row, numbers, HEAD_BLOCKS,
                    STAGES, gl.constexpr(0),
                ),
            ),
            (
                _add,
                (
                    out, parts, lengths, shared, plan, chunk, block, out_row, numbers, HEAD_BLOCKS,
                    STAGES, gl.constexpr(1),
                ),
            ),
            (
                _bring,
                (
                    k_desc, rope_desc, block_table, lengths, table_row, rows, apart, shared[0],
                    plan, PAGE, BOX, STAGES,
                ),
            ),
        ],
        [4, 4, 1],
        [192, 192, 24],
    )  # fmt: skip
