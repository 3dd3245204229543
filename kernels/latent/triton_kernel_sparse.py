"""Latent attention for Hopper over chosen tokens of FP8 rows.

One warp group widens rows, two attend: see `triton_kernel_widen` and `triton_kernel_attend`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents

from kvproof.kernels.latent.triton_kernel_attend import LOG2E, attend_chunk
from kvproof.kernels.latent.triton_kernel_chunks import TILE, part_of_program
from kvproof.kernels.latent.triton_kernel_hopper import shared_memory
from kvproof.kernels.latent.triton_kernel_widen import widen_chunk


@gluon.jit(do_not_specialize=["batch", "chunks"])
def sparse_latent_hopper(
    q_desc, q_rope_desc, pages, scales, pages_wide, indices, out, parts, norms, sinks, scale,
    batch, chunks, indices_row, out_row,
    HEADS: gl.constexpr, HEAD_BLOCKS: gl.constexpr, LEAST: gl.constexpr, SIZE: gl.constexpr,
    SMALL: gl.constexpr,
):  # fmt: skip
    """One chunk of the query tokens for 64 heads; grid: chunks * HEAD_BLOCKS.

    `pages`, `scales` and `pages_wide` are the same rows as bytes, float32 and bfloat16; a query
    token has `SIZE` indices, and rows of a `SMALL` pool 32 bits of address. `parts` and `norms`
    are those of `latent_decode_hopper`.
    """
    gdc_launch_dependents()
    has_work, chunk, block, plan = part_of_program(
        indices, batch, chunks, HEAD_BLOCKS, 1, LEAST, SIZE
    )  # fmt: skip
    if not has_work:
        return
    ring, query, links, masses = shared_memory(q_desc.dtype)
    biases = gl.allocate_shared_memory(
        gl.float32, [2, TILE], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )  # fmt: skip
    numbers = HEADS + 0
    shared = (ring, query, links, masses)
    log_scale = scale * LOG2E
    gl.warp_specialize(
        [
            (
                attend_chunk,
                (
                    out, parts, norms, sinks, indices, log_scale, shared, biases, None,
                    plan, chunk, block, out_row, HEADS, gl.constexpr(1), HEAD_BLOCKS,
                    SIZE, gl.constexpr(0),
                ),
            ),
            (
                attend_chunk,
                (
                    out, parts, norms, sinks, indices, log_scale, shared, biases, None,
                    plan, chunk, block, out_row, HEADS, gl.constexpr(1), HEAD_BLOCKS,
                    SIZE, gl.constexpr(1),
                ),
            ),
            (
                widen_chunk,
                (
                    q_desc, q_rope_desc, pages, scales, pages_wide, indices, indices_row, ring,
                    query, biases, plan, block, numbers, SIZE, SMALL,
                ),
            ),
        ],
        [4, 4],
        [208, 88],
    )  # fmt: skip
