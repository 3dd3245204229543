"""A copy of the context for the kernel for compute capability 9, where it cannot copy the pages.

Pages of another dtype than the queries, of a size that 8 does not divide, or on no grid of rows.
Heads of the copy are padded with zeros to whole units of the hardware, so it always fits.
"""

from __future__ import annotations

import torch

from kvproof.kernels.backend import power_above
from kvproof.kernels.grid import UNIT, Grid
from kvproof.kernels.paged_prefill.arguments import Inputs

GATHERED_PAGE = 128
"""Tokens of a page of the gathered context."""

GATHERED_ROWS = 8
GATHERED_COLUMNS = 1024
"""Tokens that a program gathers, and elements of each that it holds at a time."""


def fits(given: Inputs, longest: int) -> bool:
    """Whether the kernel can attend over the copy."""
    return _rows(given, longest).can_be_copied()


def nbytes(given: Inputs, longest: int) -> int:
    """Size of the copy, with room for the longest request."""
    rows = _rows(given, longest)
    return 2 * rows.rows * rows.apart


def _rows(given: Inputs, longest: int) -> Grid:
    """Keys of the copy, or values: they start at a whole page of it."""
    head = _columns(given) * given.q.element_size()
    rows = len(given.lengths) * _pages(longest) * GATHERED_PAGE
    return Grid(0, rows, given.kv_heads * head, given.kv_heads, head)


def _columns(given: Inputs) -> int:
    """Columns of a head of the copy."""
    unit: int = UNIT // given.q.element_size()
    dim: int = given.q.shape[2]
    return -(-dim // unit) * unit


def _pages(longest: int) -> int:
    return -(-longest // GATHERED_PAGE)


def gathered(given: Inputs, longest: int) -> Inputs:
    """The same arguments over a copy of the context in pages of its own.

    Values times the scales of their tokens become float16, which rounds eight times finer than
    bfloat16, and so do the queries. Without such scales they are exact in q's dtype.
    """
    from kvproof.kernels.paged_prefill.triton_kernel_gather import gather

    batch, room = len(given.lengths), _pages(longest)
    dim, k, v = _columns(given), given.k_pages, given.v_pages
    scaled = given.k_scale is not None and given.k_scale.dim() == 3
    q = given.q.half() if scaled else given.q
    rows = q.new_empty((2, batch * room, GATHERED_PAGE, given.kv_heads, dim))
    table = torch.arange(batch * room, dtype=torch.int32, device=rows.device).view(batch, room)
    gather[(-(-longest // GATHERED_ROWS), batch)](
        k, v, *rows, given.block_table, given.lengths, given.query_starts,
        given.k_scale, given.v_scale, given.block_table.stride(0),
        *k.stride()[:3], *v.stride()[:3], *given.scale_strides,
        room * GATHERED_PAGE, given.window,
        PAGE=given.page_size, KV_HEADS=given.kv_heads, DIM=k.shape[3], WIDTH=dim,
        ROWS=GATHERED_ROWS,
        COLUMNS=min(GATHERED_COLUMNS, power_above(given.kv_heads * dim)),
        LONGEST_TILE=GATHERED_PAGE, SCALED=scaled,
    )  # fmt: skip
    given = given._replace(q=q, k_pages=rows[0], v_pages=rows[1], block_table=table)
    return given._replace(k_scale=None, v_scale=None) if scaled else given
