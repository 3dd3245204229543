"""Quantises latent rows and scatters them into pages."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kvproof.kernels.kv_fill.triton_kernel import _on_float8_grid
from kvproof.kernels.paged_decode.triton_kernel_tiles import rounded

GROUP = tl.constexpr(128)
GROUPS = tl.constexpr(4)
ROPE = tl.constexpr(64)
ROW = tl.constexpr(656)
MOST = tl.constexpr(448.0)
LEAST = tl.constexpr(1e-30)


@triton.jit
def _targets(slots, token, count, page_size, page_bytes):
    """First byte of the row of each token, and which tokens have one."""
    slot = tl.load(slots + token, mask=token < count, other=-1).to(tl.int64)
    return slot // page_size * page_bytes + slot % page_size * ROW, slot >= 0


@triton.jit(do_not_specialize=["count", "page_size"])
def fill_rows(
    latent, rope, slots, values, scales, narrow, count, latent_step, rope_step, page_size,
    page_bytes, TOKENS: tl.constexpr, INTERPRETED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """`TOKENS` tokens. `values`, `scales` and `narrow` are the pages in the dtypes of a row."""
    first = tl.program_id(0) * TOKENS
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    piece = tl.arange(0, TOKENS * GROUPS)
    token, group = first + piece // GROUPS, piece % GROUPS
    column = tl.arange(0, GROUP)
    target, wanted = _targets(slots, token, count, page_size, page_bytes)
    source = token.to(tl.int64) * latent_step + group * GROUP
    x = tl.load(latent + source[:, None] + column[None, :], mask=wanted[:, None], other=0.0)
    x = x.to(tl.float32)
    most = tl.full([TOKENS * GROUPS], MOST, tl.float32)
    scale = tl.maximum(tl.div_rn(tl.max(tl.abs(x), 1), most), LEAST)
    value = tl.div_rn(x, tl.broadcast_to(scale[:, None], [TOKENS * GROUPS, GROUP]))
    value = tl.clamp(value, -MOST, MOST)
    if INTERPRETED:
        value = _on_float8_grid(value)
    at = (target + group * GROUP)[:, None] + column[None, :]
    tl.store(values + at, value.to(tl.float8e4nv), mask=wanted[:, None])
    tl.store(scales + (target + GROUPS * GROUP) // 4 + group, scale, mask=wanted)
    token = first + tl.arange(0, TOKENS)
    column = tl.arange(0, ROPE)
    target, wanted = _targets(slots, token, count, page_size, page_bytes)
    source = token.to(tl.int64)[:, None] * rope_step + column[None, :]
    y = tl.load(rope + source, mask=wanted[:, None], other=0.0).to(tl.float32)
    at = ((target + ROW) // 2 - ROPE)[:, None] + column[None, :]
    tl.store(narrow + at, rounded(y, tl.bfloat16, not INTERPRETED), mask=wanted[:, None])
