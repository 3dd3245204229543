"""Latent decode attention for Hopper over pages of FP8 rows with one scale for all.

One warp group brings rows and widens them to bfloat16, in place as `triton_kernel_widen` does; two
attend. The scale is not in the rows: scores are multiplied by it, and so are answers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, mbarrier
from triton.language.extra.cuda import gdc_launch_dependents

from kvproof.kernels.gluon import async_gather, barrier
from kvproof.kernels.latent.triton_kernel_attend import LOG2E, attend_chunk
from kvproof.kernels.latent.triton_kernel_chunks import TILE, part_of_program, span, tiles_of
from kvproof.kernels.latent.triton_kernel_copy import FLAT, copy_queries
from kvproof.kernels.latent.triton_kernel_gather import fill_part
from kvproof.kernels.latent.triton_kernel_hopper import shared_memory
from kvproof.kernels.latent.triton_kernel_widen import COPIED, WIDE, narrow_half

UNIT = gl.constexpr(16)
"""Bytes in which places of rows are counted, so that 32 bits are enough."""

ROPE_COPIED = gl.constexpr(gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0]))
ROPE_WIDE = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))


@gluon.jit
def _units_of(table, first, limit, page_units, row_units, PAGE: gl.constexpr):
    """Where the rows of a tile begin; -1 for those that do not exist."""
    at = first + gl.arange(0, TILE, FLAT)
    there = (at >= 0) & (at < limit)
    page = gl.load(table + at // PAGE, mask=there, other=0)
    return gl.where(there, page * page_units + at % PAGE * row_units, -1)


@gluon.jit
def _copy(pages, units, place, first, layout: gl.constexpr):
    """Start copies of some columns of the rows of a tile; those that do not exist become zeros."""
    column = first + gl.arange(0, place.shape[1], gl.SliceLayout(0, layout))
    begin = gl.convert_layout(units, gl.SliceLayout(1, layout))
    rows = pages + gl.maximum(begin, 0).to(gl.int64) * UNIT
    there = (begin >= 0)[:, None] & (column >= 0)[None, :]
    async_gather(place, rows[:, None] + column[None, :], mask=there)
    async_copy.commit_group()


@gluon.jit
def _widened(bits):
    """Bytes of float8_e4m3 as bfloat16, exactly; see `triton_kernel_widen`."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 x, y, big;
        mov.b32 big, 0x7b807b80;
        prmt.b32 x, $2, 0, 0x1404;
        shr.u32 y, x, 4;
        and.b32 y, y, 0x07f007f0;
        lop3.b32 x, x, 0x80008000, y, 0xea;
        mul.rn.bf16x2 $0, x, big;
        prmt.b32 x, $2, 0, 0x3424;
        shr.u32 y, x, 4;
        and.b32 y, y, 0x07f007f0;
        lop3.b32 x, x, 0x80008000, y, 0xea;
        mul.rn.bf16x2 $1, x, big;
        }""",
        "=r,=r,r",
        [bits],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=4,
    )


@gluon.jit
def _widen_half(tile):
    narrow = narrow_half(tile, 128)
    HALF: gl.constexpr = tile.shape[1] // 2
    bits = narrow.slice(0, HALF, 1).load(WIDE)
    next_bits = narrow.slice(HALF, HALF, 1).load(WIDE)
    barrier()
    tile.slice(0, HALF, 1).store(_widened(bits))
    tile.slice(HALF, HALF, 1).store(_widened(next_bits))


@gluon.jit
def _widen_rope(tile):
    bits = narrow_half(tile, 64).load(ROPE_WIDE)
    barrier()
    tile.store(_widened(bits))


@gluon.jit
def _bring_tile(pages, units, ring, turn, WHICH: gl.constexpr):
    """A tile, part by part: all copies are under way before the first part is widened."""
    phase = (turn & 1) ^ 1
    left = ring[0][0].index(WHICH)
    right = ring[1][0].index(WHICH)
    rope = ring[2][0].index(WHICH)
    HALF: gl.constexpr = left.shape[1]
    mbarrier.wait(ring[2][2].index(WHICH), phase)
    _copy(pages, units, narrow_half(rope, 64), 2 * HALF, ROPE_COPIED)
    mbarrier.wait(ring[0][2].index(WHICH), phase)
    _copy(pages, units, narrow_half(left, 128), 0, COPIED)
    mbarrier.wait(ring[1][2].index(WHICH), phase)
    _copy(pages, units, narrow_half(right, 128), HALF, COPIED)
    async_copy.wait_group(2)
    barrier()
    _widen_rope(rope)
    fill_part(ring[2], WHICH)
    async_copy.wait_group(1)
    barrier()
    _widen_half(left)
    fill_part(ring[0], WHICH)
    async_copy.wait_group(0)
    barrier()
    _widen_half(right)
    fill_part(ring[1], WHICH)


@gluon.jit
def widen_pages(
    q_desc, q_rope_desc, pages, block_table, lengths, table_row, page_units, row_units, ring,
    query, plan, block, numbers, PAGE: gl.constexpr,
):  # fmt: skip
    """Copy the queries of each request of a chunk, and widen its tiles, the last ones first."""
    begin, end, request, request_begin = plan
    turn = 0
    other_turn = 0
    served = 0
    while request_begin < end:
        size = gl.load(lengths + request)
        low, high = span(size, begin, end, request_begin)
        limit = gl.minimum(size, high * TILE)
        table = block_table + request.to(gl.int64) * table_row
        newest = (high - 1) * TILE
        units = _units_of(table, newest, limit, page_units, row_units, PAGE)
        copy_queries(q_desc, q_rope_desc, query, served, request, block, numbers)
        count = (high - low + 1) // 2
        other_count = high - low - count
        for i in range(count):
            first = newest - 2 * i * TILE
            after = _units_of(table, first - TILE, limit, page_units, row_units, PAGE)
            _bring_tile(pages, units, ring, turn + i, 0)
            units = after
            if i < other_count:
                after = _units_of(table, first - 2 * TILE, limit, page_units, row_units, PAGE)
                _bring_tile(pages, units, ring, other_turn + i, 1)
                units = after
        turn += count
        other_turn += other_count
        served += 1
        request_begin += tiles_of(size)
        request += 1


@gluon.jit(do_not_specialize=["batch", "chunks"])
def latent_decode_narrow(
    q_desc, q_rope_desc, pages, pages_scale, out, lse, parts, norms, sinks, block_table, lengths,
    scale, batch, chunks, table_row, out_row, page_units, row_units,
    HEADS: gl.constexpr, Q_TOKENS: gl.constexpr, HEAD_BLOCKS: gl.constexpr, BATCH: gl.constexpr,
    LEAST: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    """One chunk of the batch for 64 query rows; grid: chunks * HEAD_BLOCKS.

    `pages` are bytes, with rows `row_units` and pages `page_units` apart, in units of 16 bytes;
    `pages_scale` is one float32. `parts` and `norms` are those of `latent_decode_hopper`.
    """
    gdc_launch_dependents()
    has_work, chunk, block, plan = part_of_program(
        lengths, batch, chunks, HEAD_BLOCKS, BATCH, LEAST, 0
    )  # fmt: skip
    if not has_work:
        return
    ring, query, links, masses = shared_memory(q_desc.dtype)
    numbers = Q_TOKENS * HEADS
    shared = (ring, query, links, masses)
    factor = gl.load(pages_scale)
    log_scale = scale * LOG2E * factor
    gl.warp_specialize(
        [
            (
                attend_chunk,
                (
                    out, lse, parts, norms, sinks, lengths, log_scale, shared, None, factor, plan,
                    chunk, block, out_row, HEADS, Q_TOKENS, HEAD_BLOCKS, gl.constexpr(0),
                    gl.constexpr(0),
                ),
            ),
            (
                attend_chunk,
                (
                    out, lse, parts, norms, sinks, lengths, log_scale, shared, None, factor, plan,
                    chunk, block, out_row, HEADS, Q_TOKENS, HEAD_BLOCKS, gl.constexpr(0),
                    gl.constexpr(1),
                ),
            ),
            (
                widen_pages,
                (
                    q_desc, q_rope_desc, pages, block_table, lengths, table_row, page_units,
                    row_units, ring, query, plan, block, numbers, PAGE,
                ),
            ),
        ],
        [4, 4],
        [208, 88],
    )  # fmt: skip
