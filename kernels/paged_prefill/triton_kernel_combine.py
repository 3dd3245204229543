"""Merges the parts of blocks of rows that several programs attended."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kvproof.kernels.paged_prefill.triton_kernel_work import FIELDS

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def other_part(part, lse, at, lse_at, head, live, DIM: tl.constexpr, COLUMNS: tl.constexpr):
    """Attention over another part of the context, and its logarithms to base 2, of live rows."""
    column = tl.arange(0, COLUMNS)
    weight = tl.load(lse + lse_at + head, mask=live, other=float("-inf")) * LOG2E
    here = (live & (weight > float("-inf")))[:, None] & (column < DIM)[None, :]
    value = tl.load(part + (at + head * DIM)[:, None] + column[None, :], mask=here, other=0.0)
    return weight, value.to(tl.float32)


@triton.jit
def combine(
    parts,
    weights,
    sinks,
    part,
    part_lse,
    out,
    lse,
    counts,
    merges,
    room,
    part_row,
    part_lse_row,
    out_row,
    out_head,
    lse_row,
    lse_head,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Merge `ROWS` rows of one block of one KV head; grid: merges * KV_HEADS * (BLOCK // ROWS).

    Parts are float32 [kv heads, room, BLOCK, dim], weights the base-2 logarithms of their sums
    [kv heads, room, BLOCK], minus infinity for a row that sees nothing of a part.
    """
    EACH: tl.constexpr = BLOCK // ROWS
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    merge = tl.program_id(0) // (KV_HEADS * EACH)
    if merge >= tl.load(counts + 1):
        return
    kv_head = tl.program_id(0) // EACH % KV_HEADS
    start = tl.load(merges + merge * FIELDS)
    first = tl.load(merges + merge * FIELDS + 1)
    rows = tl.load(merges + merge * FIELDS + 2)
    count = tl.load(merges + merge * FIELDS + 3)
    slot = tl.load(merges + merge * FIELDS + 4)
    row = tl.program_id(0) % EACH * ROWS + tl.arange(0, ROWS)
    live = row < rows
    column = tl.arange(0, COLUMNS)
    head = kv_head * GROUP + (first + row) % GROUP
    token = (start + (first + row) // GROUP).to(tl.int64)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    if part is not None:
        top, acc = other_part(
            part, part_lse, token * part_row, token * part_lse_row, head, live, DIM, COLUMNS
        )
        total = tl.where(top > float("-inf"), 1.0, 0.0)
    for piece in tl.range(0, count):
        place = (kv_head * room + slot + piece).to(tl.int64) * BLOCK + row
        weight = tl.load(weights + place, mask=live, other=float("-inf"))
        here = (live & (weight > float("-inf")))[:, None] & (column < DIM)[None, :]
        value = tl.load(parts + place[:, None] * DIM + column[None, :], mask=here, other=0.0)
        new_top = tl.maximum(top, weight)
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.exp2(weight - base)
        shrink = tl.exp2(top - base)
        acc = acc * shrink[:, None] + weight[:, None] * value
        total = total * shrink + weight
        top = new_top
    base = tl.where(top > float("-inf"), top, 0.0)
    if sinks is not None:
        total += tl.exp2(tl.load(sinks + head) * LOG2E - base)
    some = tl.where(total > 0, total, 1.0)
    if lse is not None:
        found = tl.where(total > 0, (base + tl.log2(some)) / LOG2E, float("-inf"))
        tl.store(lse + token * lse_row + head * lse_head, found, mask=live)
    where = out + token[:, None] * out_row + head[:, None] * out_head + column[None, :]
    value = (acc / some[:, None]).to(out.dtype.element_ty)
    tl.store(where, value, mask=live[:, None] & (column < DIM)[None, :])
