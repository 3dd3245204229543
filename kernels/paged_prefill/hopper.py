"""The kernel for compute capability 9: what it can copy, and its launch.

It copies queries, keys and values by the tensor memory unit, in boxes of rows and columns of one
head. `fits` is its whole precondition; the launch makes its descriptors of the same grids.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvproof.kernels.backend import power_above
from kvproof.kernels.paged_prefill.arguments import Inputs
from kvproof.kernels.paged_prefill.tiling import Plan, blocks_of

HOPPER_ROWS = 64
"""Query rows of a warp group; a program has two."""

HOPPER_COLUMNS = 64
"""Columns of the narrowest tile: 128 bytes, a row of its swizzle."""

HOPPER_BOX = 8
"""Fewest rows of a page in one copy: the period of the swizzle."""

UNIT = 16
"""Bytes. Addresses, rows and starts of copies are multiples: else the unit raises an illegal
instruction, which ends the context."""

MOST_ROWS = (1 << 31) - 2 * HOPPER_ROWS
"""Row numbers are int32; a box may start at the last row, or just past it."""

MOST_APART = 1 << 40
"""Bytes from one row to the next, which a descriptor cannot hold."""


class Grid(NamedTuple):
    """Rows of the same heads next to each other; bytes, but for `rows` and `heads`."""

    start: int
    """Address of the first row."""
    rows: int
    apart: int
    """Distance from one row to the next."""
    heads: int
    head: int
    """Width of a head: a copy starts at a multiple."""

    def can_be_copied(self) -> bool:
        """Whether the tensor memory unit can copy a head of any rows."""
        first_columns = self.head if self.heads > 1 else 0
        return (
            self.start % UNIT == self.apart % UNIT == first_columns % UNIT == 0
            and self.heads * self.head <= self.apart < MOST_APART
            and self.rows <= MOST_ROWS
        )


def fits(given: Inputs) -> bool:
    """Whether the kernel can attend these queries over these pages as they are."""
    return (
        given.k_pages.dtype == given.q.dtype
        and box(given.page_size) >= HOPPER_BOX
        and queries_fit(given.q)
        and all(_pages_fit(pages) for pages in (given.k_pages, given.v_pages))
    )


def queries_fit(q: torch.Tensor) -> bool:
    """Whether the kernel can copy these queries."""
    return _heads_touch(q) and _queries(q).can_be_copied()


def _pages_fit(pages: torch.Tensor) -> bool:
    return rows_apart(pages) > 0 and _slots(pages).can_be_copied()


def rows_apart(pages: torch.Tensor) -> int:
    """Rows from one page to the next if all slots form one grid of rows, else 0."""
    page, slot = pages.stride()[:2]
    return page // slot if slot and page % slot == 0 and _heads_touch(pages) else 0


def _heads_touch(tensor: torch.Tensor) -> bool:
    """Whether the heads of a row follow each other without gaps."""
    return bool(tensor.shape[-2] == 1 or tensor.stride(-2) == tensor.shape[-1])


def box(page_size: int) -> int:
    """The greatest power of two that divides a page size."""
    return page_size & -page_size


def _queries(q: torch.Tensor) -> Grid:
    size = q.element_size()
    return Grid(q.data_ptr(), len(q), q.stride(0) * size, q.shape[1], q.shape[2] * size)


def _slots(pages: torch.Tensor) -> Grid:
    size, rows = pages.element_size(), (len(pages) - 1) * rows_apart(pages) + pages.shape[1]
    return Grid(
        pages.data_ptr(), rows, pages.stride(1) * size, pages.shape[2], pages.shape[3] * size
    )


def run(given: Inputs, out: torch.Tensor, weights: torch.Tensor | None, plan: Plan) -> None:
    """Attend; with several splits `out` and `weights` are those of the first."""
    from kvproof.kernels.paged_prefill.triton_kernel_hopper import descriptor, prefill_hopper

    q, pages, batch = given.q, (given.k_pages, given.v_pages), len(given.lengths)
    tokens, heads, dim = q.shape
    copied = min(box(given.page_size), plan.tile)
    columns = max(HOPPER_COLUMNS, power_above(dim))
    slots = [_slots(pool) for pool in pages]
    boxes = [(copied, columns)] * len(pages)
    prefill_hopper[(blocks_of(tokens, batch, plan.rows) * heads, plan.splits)](
        descriptor(q, _queries(q), (HOPPER_ROWS, columns)),
        *map(descriptor, pages, slots, boxes),
        out, weights, given.block_table, given.lengths, given.query_starts, given.sinks,
        given.k_scale, given.v_scale, given.scale, given.soft_cap, batch, heads, tokens,
        given.block_table.stride(0), *out.stride()[:2],
        *(grid.rows for grid in slots), *map(rows_apart, pages),
        GROUP=given.group, PAGE=given.page_size, BOX=copied, TILE=plan.tile, DIM=dim,
        STAGES=plan.stages, WINDOW=given.window, CAPPED=given.soft_cap > 0,
        SPLITS=plan.splits, TOGETHER=plan.together, COPIERS=plan.copiers, num_warps=4,
    )  # fmt: skip
