"""Latent attention for Hopper over chosen tokens of FP8 or bfloat16 rows.

One warp group brings rows, two attend: see `triton_kernel_widen`, `triton_kernel_gather` and
`triton_kernel_attend`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_launch_dependents

from kvproof.kernels.latent.triton_kernel_attend import LOG2E, attend_chunk
from kvproof.kernels.latent.triton_kernel_chunks import (
    TILE,
    part_of_program,
    size_of,
    span,
    tiles_of,
)
from kvproof.kernels.latent.triton_kernel_copy import FLAT, copy_queries
from kvproof.kernels.latent.triton_kernel_gather import gather_tile
from kvproof.kernels.latent.triton_kernel_hopper import shared_memory
from kvproof.kernels.latent.triton_kernel_widen import SMALLER, widen_tile


@gluon.jit
def _slots_of(indices, first, limit):
    """Slots of tokens; -1 stands for none, as all do of a tile that does not exist."""
    at = first + gl.arange(0, TILE, FLAT)
    return gl.load(indices + at, mask=(at >= 0) & (at < limit), other=-1)


@gluon.jit
def _bring_tile(
    pages, scales, pages_wide, chosen, ring, biases, turn, WHICH: gl.constexpr, SMALL: gl.constexpr
):  # fmt: skip
    # Biases are read before the rotary columns are given back.
    mbarrier.wait(ring[2][2].index(WHICH), (turn & 1) ^ 1)
    biases.index(WHICH).store(gl.where(chosen >= 0, 0.0, float("-inf")))
    if scales is None:
        gather_tile(pages, chosen, ring, turn, WHICH, SMALL)
    else:
        widen_tile(pages, scales, pages_wide, chosen, ring, turn, WHICH, SMALL)


@gluon.jit
def _bring_chunk(
    q_desc, q_rope_desc, pages, scales, pages_wide, indices, indices_row, ring, query, biases,
    plan, block, numbers, SIZE: gl.constexpr, SMALL: gl.constexpr,
):  # fmt: skip
    """Copy the queries of each request of a chunk, and bring its tiles, the last ones first."""
    begin, end, request, request_begin = plan
    turn = 0
    other_turn = 0
    served = 0
    while request_begin < end:
        size = size_of(indices, request, SIZE)
        low, high = span(size, begin, end, request_begin)
        limit = gl.minimum(size, high * TILE)
        chosen = indices + request.to(gl.int64) * indices_row
        newest = (high - 1) * TILE
        slots = _slots_of(chosen, newest, limit)
        copy_queries(q_desc, q_rope_desc, query, served, request, block, numbers)
        count = (high - low + 1) // 2
        other_count = high - low - count
        for i in range(count):
            first = newest - 2 * i * TILE
            after = _slots_of(chosen, first - TILE, limit)
            _bring_tile(pages, scales, pages_wide, slots, ring, biases, turn + i, 0, SMALL)
            slots = after
            if i < other_count:
                after = _slots_of(chosen, first - 2 * TILE, limit)
                _bring_tile(
                    pages, scales, pages_wide, slots, ring, biases, other_turn + i, 1, SMALL
                )  # fmt: skip
                slots = after
        turn += count
        other_turn += other_count
        served += 1
        request_begin += tiles_of(size)
        request += 1


@gluon.jit(do_not_specialize=["batch", "chunks"])
def sparse_latent_hopper(
    q_desc, q_rope_desc, pages, scales, pages_wide, indices, out, lse, parts, norms, sinks, scale,
    batch, chunks, indices_row, out_row,
    HEADS: gl.constexpr, HEAD_BLOCKS: gl.constexpr, LEAST: gl.constexpr, SIZE: gl.constexpr,
    WHOLE: gl.constexpr, SMALL: gl.constexpr,
):  # fmt: skip
    """One chunk of the query tokens for 64 heads; grid: chunks * HEAD_BLOCKS.

    `pages`, `scales` and `pages_wide` are the same FP8 rows as bytes, float32 and bfloat16; without
    the latter two rows are of bfloat16. A query token has `SIZE` indices; with `WHOLE` it lies in
    one chunk. Rows of a `SMALL` pool have 32 bits of address. `parts` and `norms` are those of
    `latent_decode_hopper`.
    """
    gdc_launch_dependents()
    has_work, chunk, block, plan = part_of_program(
        indices, batch, chunks, HEAD_BLOCKS, 1, LEAST, SIZE, WHOLE
    )  # fmt: skip
    if not has_work:
        return
    ring, query, links, masses = shared_memory(q_desc.dtype)
    biases = gl.allocate_shared_memory(
        gl.float32, [2, TILE], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )  # fmt: skip
    numbers = HEADS + 0
    shared = (ring, query, links, masses)
    # A thread of the three warp groups has 504 in all.
    REGISTERS: gl.constexpr = 216 if scales is None else 208
    SMALL_BY: gl.constexpr = 1.0 if scales is None else SMALLER
    factor = gl.to_tensor(1.0 / SMALL_BY)
    log_scale = scale * LOG2E * factor
    gl.warp_specialize(
        [
            (
                attend_chunk,
                (
                    out, lse, parts, norms, sinks, indices, log_scale, shared, biases, factor,
                    plan, chunk, block, out_row, HEADS, gl.constexpr(1), HEAD_BLOCKS,
                    SIZE, gl.constexpr(0), SMALL_BY,
                ),
            ),
            (
                attend_chunk,
                (
                    out, lse, parts, norms, sinks, indices, log_scale, shared, biases, factor,
                    plan, chunk, block, out_row, HEADS, gl.constexpr(1), HEAD_BLOCKS,
                    SIZE, gl.constexpr(1), SMALL_BY,
                ),
            ),
            (
                _bring_chunk,
                (
                    q_desc, q_rope_desc, pages, scales, pages_wide, indices, indices_row, ring,
                    query, biases, plan, block, numbers, SIZE, SMALL,
                ),
            ),
        ],
        [4, 4],
        [REGISTERS, 504 - 2 * REGISTERS],
    )  # fmt: skip
