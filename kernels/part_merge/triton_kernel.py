"""Merges parts of attention, some rows at a time; a row is one head of one token."""

import triton
import triton.language as tl

from kvproof.kernels.paged_decode.triton_kernel_tiles import rounded

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["rows", "count"])
def merge(
    parts, sums, out, out_sums, rows, count, part_step, sums_step,
    DIM: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, GPU: tl.constexpr,
):  # fmt: skip
    """`ROWS` rows of parts [count, rows, DIM]; of an empty part nothing is read but its sum."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    column = tl.arange(0, COLUMNS)
    at = row.to(tl.int64)[:, None] * DIM + column[None, :]
    is_column = (column < DIM)[None, :]
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for part in tl.range(0, count):
        number = tl.cast(part, tl.int64)
        found = tl.load(sums + number * sums_step + row, mask=live, other=float("-inf"))
        found = found * LOG2E
        here = (found > float("-inf"))[:, None] & is_column
        value = tl.load(parts + number * part_step + at, mask=here, other=0.0).to(tl.float32)
        new_top = tl.maximum(top, found)
        base = tl.where(new_top > float("-inf"), new_top, 0.0)
        weight = tl.exp2(found - base)
        shrink = tl.exp2(top - base)
        acc = acc * shrink[:, None] + tl.where(here, value * weight[:, None], 0.0)
        total = total * shrink + weight
        top = new_top
    some = tl.where(total > 0, total, 1.0)
    value = rounded(acc / some[:, None], out.dtype.element_ty, GPU)
    tl.store(out + at, value, mask=live[:, None] & is_column)
    if out_sums is not None:
        base = tl.where(total > 0, top, 0.0)
        whole = tl.where(total > 0, (base + tl.log2(some)) / LOG2E, float("-inf"))
        tl.store(out_sums + row, whole, mask=live)
