"""Sparse latent attention in plain Triton: rows of bfloat16, and FP8 rows without a Hopper GPU.

A program attends all chosen tokens of a query token for some heads. Products with FP8 rows are of
float32, so that the answer does not depend on what a GPU's matrix units round to; those with rows
of bfloat16 are of bfloat16.
"""

import triton
import triton.language as tl

from kvproof.kernels.paged_decode.triton_kernel_tiles import operand, rounded

LOG2E = tl.constexpr(1.4426950408889634)
ROW = tl.constexpr(656)
VALUES = tl.constexpr(512)
ROPE = tl.constexpr(64)
GROUP = tl.constexpr(128)


@triton.jit
def _float8(byte):
    """Bytes of float8_e4m3 in int32 as float32."""
    bits = ((byte & 0x80) << 24) | ((byte & 0x7F) << 20)
    value = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2 to the power of 120
    return tl.where((byte & 0x7F) == 0x7F, float("nan"), value)


@triton.jit
def _halves(low, high):
    """Two bytes each, in int32, as bfloat16 in float32."""
    return ((low << 16) | (high << 24)).to(tl.float32, bitcast=True)


@triton.jit
def _load_tile(pages, slots, live, page_bytes, PAGE: tl.constexpr):
    """Values with their scales and rotary columns of chosen tokens, both float32."""
    rows = pages + (slots // PAGE).to(tl.int64) * page_bytes + (slots % PAGE) * ROW
    column = tl.arange(0, VALUES)
    there = live[:, None]
    values = _float8(tl.load(rows[:, None] + column[None, :], mask=there, other=0).to(tl.int32))
    at = rows[:, None] + VALUES + 4 * (column // GROUP)[None, :]
    bits = tl.load(at, mask=there, other=0).to(tl.int32)
    for byte in tl.static_range(1, 4):
        bits |= tl.load(at + byte, mask=there, other=0).to(tl.int32) << (8 * byte)
    at = rows[:, None] + (ROW - 2 * ROPE) + 2 * tl.arange(0, ROPE)[None, :]
    low = tl.load(at, mask=there, other=0).to(tl.int32)
    high = tl.load(at + 1, mask=there, other=0).to(tl.int32)
    return values * bits.to(tl.float32, bitcast=True), _halves(low, high)


@triton.jit
def _load_wide_tile(pages, slots, live, page_columns, PAGE: tl.constexpr):
    """Values and rotary columns of chosen tokens, both bfloat16."""
    rows = pages + (slots // PAGE).to(tl.int64) * page_columns + (slots % PAGE) * (VALUES + ROPE)
    there = live[:, None]
    values = tl.load(rows[:, None] + tl.arange(0, VALUES)[None, :], mask=there, other=0.0)
    ropes = tl.load(rows[:, None] + VALUES + tl.arange(0, ROPE)[None, :], mask=there, other=0.0)
    return values, ropes


@triton.jit
def sparse_latent_kernel(
    q, pages, indices, out, lse, sinks, scale, heads, q_token, q_head, out_token, out_head,
    indices_row, page_step,
    PAGE: tl.constexpr, CHOSEN: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    STAGES: tl.constexpr, WIDE: tl.constexpr, GPU: tl.constexpr,
):  # fmt: skip
    """`ROWS` heads of a query token; grid: tokens, blocks of heads.

    `page_step`: elements from one page to the next. `WIDE`: rows are of bfloat16, not of FP8.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_head = head < heads
    column = tl.arange(0, VALUES)
    q_rows = q + token * q_token + head * q_head
    q_values = tl.load(q_rows[:, None] + column[None, :], mask=is_head[:, None], other=0.0)
    rope = VALUES + tl.arange(0, ROPE)
    q_rope = tl.load(q_rows[:, None] + rope[None, :], mask=is_head[:, None], other=0.0)
    if not (WIDE and GPU):
        q_values = q_values.to(tl.float32)
        q_rope = q_rope.to(tl.float32)
    top = tl.full([ROWS], -1e30, tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, VALUES], tl.float32)
    for first in tl.range(0, CHOSEN, TILE, num_stages=STAGES):
        at = first + tl.arange(0, TILE)
        slots = tl.load(indices + token * indices_row + at, mask=at < CHOSEN, other=-1)
        live = slots >= 0
        if WIDE:
            values, ropes = _load_wide_tile(pages, tl.maximum(slots, 0), live, page_step, PAGE)
        else:
            values, ropes = _load_tile(pages, tl.maximum(slots, 0), live, page_step, PAGE)
        values, ropes = operand(values, GPU), operand(ropes, GPU)
        logits = tl.dot(q_values, tl.trans(values), input_precision="ieee")
        logits = tl.dot(q_rope, tl.trans(ropes), logits, input_precision="ieee")
        logits = tl.where(live[None, :], logits * (scale * LOG2E), float("-inf"))
        most = tl.maximum(top, tl.max(logits, 1))
        shrink = tl.exp2(top - most)
        p = tl.exp2(logits - most[:, None])
        mass = mass * shrink + tl.sum(p, 1)
        if WIDE:
            p = operand(rounded(p, tl.bfloat16, GPU), GPU)
        acc = tl.dot(p, values, acc * shrink[:, None], input_precision="ieee")
        top = most
    nothing = tl.full([ROWS], float("-inf"), tl.float32)
    if sinks is not None:
        nothing = tl.load(sinks + head, mask=is_head, other=0.0) * LOG2E
        mass = tl.where(mass > 0, mass + tl.exp2(tl.where(mass > 0, nothing - top, 0.0)), 0.0)
    if lse is not None:
        found = tl.where(mass > 0, top + tl.log2(tl.where(mass > 0, mass, 1.0)), nothing)
        tl.store(lse + token * heads + head, found / LOG2E, mask=is_head)
    acc = acc / tl.where(mass > 0, mass, 1.0)[:, None]
    out_rows = out + token * out_token + head * out_head
    acc = rounded(acc, out.dtype.element_ty, GPU)
    tl.store(out_rows[:, None] + column[None, :], acc, mask=is_head[:, None])
