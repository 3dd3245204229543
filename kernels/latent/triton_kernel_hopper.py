"""Latent decode attention for Hopper over bfloat16 or float16 pages.

One warp copies, two warp groups attend: see `triton_kernel_copy` and `triton_kernel_attend`. They
share 226 of the 227 KiB of shared memory: 64 query rows, two tiles, and weights.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents

from kvproof.kernels.gluon import barrier
from kvproof.kernels.latent.triton_kernel_attend import HALF, LOG2E, ROWS, attend_chunk
from kvproof.kernels.latent.triton_kernel_chunks import TILE, part_of_program
from kvproof.kernels.latent.triton_kernel_copy import copy_chunk

ROPE = gl.constexpr(64)


def descriptor(
    tensor: torch.Tensor, rows: int, columns: int, row_stride: int, box: tuple[int, int]
) -> TensorDescriptor:
    """A tensor as `rows` rows of `columns` elements, of which a copy brings `box`."""
    size = tensor.itemsize
    layout = gl.NVMMASharedLayout(min(128, box[1] * size), 8 * size)
    return TensorDescriptor(tensor, [rows, columns], [row_stride, 1], list(box), layout)


@gluon.jit
def _barriers(count: gl.constexpr):
    """A pair of barriers, each of which waits for `count` arrivals."""
    both = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(both.index(0), count=count)
    mbarrier.init(both.index(1), count=count)
    return both


@gluon.jit
def _barrier(count: gl.constexpr):
    one = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(one, count=count)
    return one


@gluon.jit
def shared_memory(dtype: gl.constexpr):
    """Ring of tiles, queries and weights, each with the barriers for filling and emptying it."""
    wide: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    left = gl.allocate_shared_memory(dtype, [2, TILE, HALF], wide)
    right = gl.allocate_shared_memory(dtype, [2, TILE, HALF], wide)
    rope = gl.allocate_shared_memory(dtype, [2, TILE, ROPE], wide)
    q_left = gl.allocate_shared_memory(dtype, [1, ROWS, HALF], wide)
    q_right = gl.allocate_shared_memory(dtype, [1, ROWS, HALF], wide)
    q_rope = gl.allocate_shared_memory(dtype, [ROWS, ROPE], wide)
    second_weights = gl.allocate_shared_memory(dtype, [ROWS, TILE], wide)
    tops = gl.allocate_shared_memory(gl.float32, [2, ROWS], flat)
    mass_of = gl.allocate_shared_memory(gl.float32, [2, ROWS], flat)
    ring = (
        (left, _barriers(1), _barriers(1)),
        (right, _barriers(1), _barriers(1)),
        (rope, _barriers(1), _barriers(1)),
    )
    query = ((q_left, q_right), q_rope, _barrier(1), _barrier(2))
    links = (tops, (q_rope, second_weights), _barriers(1), _barriers(1))
    masses = (mass_of, _barriers(1), _barrier(1))
    fence_async_shared()
    barrier()
    return ring, query, links, masses


@gluon.jit(do_not_specialize=["batch", "chunks"])
def latent_decode_hopper(
    q_desc, q_rope_desc, k_desc, rope_desc, out, lse, parts, norms, sinks, block_table, lengths,
    scale, batch, chunks, table_row, out_row, rows, apart,
    HEADS: gl.constexpr, Q_TOKENS: gl.constexpr, HEAD_BLOCKS: gl.constexpr, BATCH: gl.constexpr,
    LEAST: gl.constexpr, PAGE: gl.constexpr, BOX: gl.constexpr,
):  # fmt: skip
    """One chunk of the batch for 64 query rows; grid: chunks * HEAD_BLOCKS.

    `parts` [2 * chunks, HEAD_BLOCKS, 64, 512] and `norms` [2 * chunks, HEAD_BLOCKS, 64] hold what a
    chunk found of a request that began before it (even places) and of one that began in it and goes
    on (odd places): weighted means, and the logarithms to base 2 of the sums of weights.
    """
    gdc_launch_dependents()
    has_work, chunk, block, plan = part_of_program(
        lengths, batch, chunks, HEAD_BLOCKS, BATCH, LEAST, 0
    )  # fmt: skip
    if not has_work:
        return
    ring, query, links, masses = shared_memory(k_desc.dtype)
    numbers = Q_TOKENS * HEADS
    shared = (ring, query, links, masses)
    log_scale = scale * LOG2E
    gl.warp_specialize(
        [
            (
                attend_chunk,
                (
                    out, lse, parts, norms, sinks, lengths, log_scale, shared, None, None, plan,
                    chunk, block, out_row, HEADS, Q_TOKENS, HEAD_BLOCKS,
                    gl.constexpr(0), gl.constexpr(0),
                ),
            ),
            (
                attend_chunk,
                (
                    out, lse, parts, norms, sinks, lengths, log_scale, shared, None, None, plan,
                    chunk, block, out_row, HEADS, Q_TOKENS, HEAD_BLOCKS,
                    gl.constexpr(0), gl.constexpr(1),
                ),
            ),
            (
                copy_chunk,
                (
                    q_desc, q_rope_desc, k_desc, rope_desc, block_table, lengths, table_row, rows,
                    apart, ring, query, plan, block, numbers, PAGE, BOX,
                ),
            ),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip
