"""The kernel for compute capability 9: the layouts that it can copy, and its launch.

It copies keys and values by the tensor memory unit, in boxes of rows and columns of one head.
`fits` is its whole precondition; the launch makes its descriptors of the same grids. Queries and
results may lie anywhere: threads load and store them.
"""

from __future__ import annotations

from kvproof.kernels.backend import power_above, start_options, starts_ahead
from kvproof.kernels.grid import slots
from kvproof.kernels.paged_prefill.arguments import Inputs
from kvproof.kernels.paged_prefill.outputs import Outputs
from kvproof.kernels.paged_prefill.work import Work

HOPPER_ROWS = 64
"""Query rows of a warp group."""

HOPPER_COLUMNS = 64
"""Columns of the narrowest tile: 128 bytes, a row of its swizzle."""

HOPPER_BOX = 8
"""Fewest rows of a page in one copy: the period of the swizzle."""


def groups(dim: int) -> int:
    """Warp groups of a program that attend.

    With narrow heads exponentials take as long as products, so three overlap better than two; the
    results of wider ones need more registers. Measured on an H200 at head size 64: 8,192 tokens
    over 32,768 at 504 TFLOP/s instead of 423.
    """
    return 3 if dim <= HOPPER_COLUMNS else 2


def fits(given: Inputs) -> bool:
    """Whether the kernel can attend queries over these pages as they are."""
    keys, values = given.k_pages, given.v_pages
    return (
        keys.dtype == given.q.dtype
        and box(keys.shape[1]) >= HOPPER_BOX
        and slots(keys).can_be_copied()
        and slots(values).can_be_copied()
    )


def box(page_size: int) -> int:
    """The greatest power of two that divides a page size."""
    return page_size & -page_size


def run(given: Inputs, to: Outputs, work: Work) -> None:
    """Attend all items."""
    from kvproof.kernels.paged_prefill.triton_kernel_hopper import descriptor, prefill_hopper

    plan, pages = work.plan, (given.k_pages, given.v_pages)
    copied = min(box(given.page_size), plan.tile)
    columns = max(HOPPER_COLUMNS, power_above(given.q.shape[2]))
    grids = [slots(pool) for pool in pages]
    boxes = [(copied, columns)] * len(pages)
    ahead = work.after_part and starts_ahead(given.q.device)
    programs = min(len(work.items), plan.programs) if plan.persistent else len(work.items)
    prefill_hopper[(programs,)](
        given.q, given.tree, given.part, given.part_lse, *map(descriptor, pages, grids, boxes),
        to.out, to.parts, to.weights, to.lse, work.counts, work.items,
        given.block_table, given.sinks, given.k_scale, given.v_scale, given.scale, given.soft_cap,
        work.parts, given.block_table.stride(0), *given.part_rows, *given.q.stride()[:2],
        *to.strides,
        *(grid.rows for grid in grids), *(pool.stride(0) // pool.stride(1) for pool in pages),
        GROUP=given.group, PAGE=given.page_size, BOX=copied,
        TILE=plan.tile, DIM=given.q.shape[2], WIDTH=given.k_pages.shape[3], HALF=HOPPER_ROWS,
        STAGES=plan.stages, WINDOW=given.window, CAPPED=given.soft_cap > 0,
        COPIERS=plan.copiers, DEPENDENT=ahead, GROUPS=plan.rows // HOPPER_ROWS,
        PERSISTENT=plan.persistent, num_warps=4,
        **start_options(ahead=ahead),
    )  # fmt: skip
