"""Combines the parts that splits of the context compute."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["rows"])
def combine(
    parts,
    weights,
    sinks,
    out,
    query_starts,
    batch,
    rows,
    out_row,
    out_head,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Combine `SPLITS` parts of some rows; a row is one head of one token.

    Parts are float32 [splits, rows, dim], weights their base-2 logarithms [splits, rows], minus
    infinity for a part without tokens.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    live = row < tl.load(query_starts + batch) * HEADS
    top = tl.full([ROWS], float("-inf"), tl.float32)
    for split in tl.static_range(SPLITS):
        top = tl.maximum(top, tl.load(weights + split * rows + row, mask=live, other=0.0))
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for split in tl.static_range(SPLITS):
        weight = tl.load(weights + split * rows + row, mask=live, other=0.0)
        weight = tl.exp2(weight - top)
        here = (live & (weight > 0))[:, None] & (column < DIM)[None, :]
        place = (split * rows + row).to(tl.int64)[:, None] * DIM + column[None, :]
        acc += weight[:, None] * tl.load(parts + place, mask=here, other=0.0)
        total += weight
    if sinks is not None:
        total += tl.exp2(tl.load(sinks + row % HEADS) * LOG2E - top)
    token = (row // HEADS).to(tl.int64)
    where = out + token[:, None] * out_row + (row % HEADS)[:, None] * out_head + column[None, :]
    value = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(where, value, mask=live[:, None] & (column < DIM)[None, :])
