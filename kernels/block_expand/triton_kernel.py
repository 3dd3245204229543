"""Writes the kernel blocks of each block, side by side."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit(do_not_specialize=["width"])
def expand(
    blocks, kernel_blocks, width, row_stride, out_stride,
    RATIO: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """`BLOCK` ids of one row a program; `COLUMNS` is the power of two at or above the ratio."""
    # Without a contiguity hint, ids are loaded one a thread: by the thread that writes their parts.
    index = tl.max_contiguous(tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), 1)
    part = tl.arange(0, COLUMNS)
    row = tl.program_id(1).to(tl.int64)
    known = index < width
    if DEPENDENT:
        gdc_wait()
        # Not before: launches would pile up, and the last of a pile are spread unevenly.
        gdc_launch_dependents()
    block = tl.load(blocks + row * row_stride + index, mask=known, other=0)
    first = block[:, None]
    out = tl.where(first < 0, first, first * RATIO + part[None, :])
    at = kernel_blocks + row * out_stride + index[:, None] * RATIO + part[None, :]
    tl.store(at, out, mask=known[:, None] & (part < RATIO)[None, :])
