"""Quantises keys to FP8 and scatters them, and their scales, into pages."""

import triton
import triton.language as tl

from kvproof.kernels.kv_fill.triton_kernel import _on_float8_grid

WIDTH = tl.constexpr(128)
MOST = tl.constexpr(448.0)
LEAST = tl.constexpr(1e-4)


@triton.jit
def fill_keys(
    keys, slots, values, scales, count, row,
    ROWS: tl.constexpr, PAGE: tl.constexpr, PAGE_BYTES: tl.constexpr, POWERS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """`ROWS` keys; grid: slices of keys. `values` and `scales` are the pages in their dtypes."""
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = token < count
    column = tl.arange(0, WIDTH)
    slot = tl.load(slots + token, mask=there, other=-1).to(tl.int64)
    wanted = slot >= 0
    source = token.to(tl.int64)[:, None] * row + column[None, :]
    key = tl.load(keys + source, mask=wanted[:, None], other=0.0).to(tl.float32)
    most = tl.full([ROWS], MOST, tl.float32)
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(key), 1), LEAST), most)
    if POWERS:
        bits = (scale.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000
        scale = bits.to(tl.float32, bitcast=True)
    value = tl.clamp(tl.div_rn(key, tl.broadcast_to(scale[:, None], [ROWS, WIDTH])), -MOST, MOST)
    if INTERPRETED:
        value = _on_float8_grid(value)
    page = slot // PAGE
    offset = slot % PAGE
    target = page * PAGE_BYTES + offset * WIDTH
    tl.store(values + target[:, None] + column[None, :], value.to(tl.float8e4nv), wanted[:, None])
    tl.store(scales + page * (PAGE_BYTES // 4) + PAGE * WIDTH // 4 + offset, scale, mask=wanted)
