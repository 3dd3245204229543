"""Tensors as the tensor memory unit of an NVIDIA GPU copies them."""

from __future__ import annotations

from typing import NamedTuple

import torch

UNIT = 16
"""Bytes. Addresses, rows and starts of copies are multiples: else the unit raises an illegal
instruction, which ends the context."""

MOST_ROWS = (1 << 31) - 256
"""Row numbers are int32; a box of up to 256 rows may start at the last row, or just past it."""

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
        start, rows, apart, heads, head = self
        return (
            (start | apart | (head if heads > 1 else 0)) % UNIT == 0
            and heads * head <= apart < MOST_APART
            and 0 < rows <= MOST_ROWS
        )


NO_GRID = Grid(0, 0, 0, 0, 0)
"""Rows between which there are gaps of unequal size, or heads with gaps; it cannot be copied."""


def slots(pages: torch.Tensor) -> Grid:
    """The rows of keys or values from the first slot of the first page to the last of the last."""
    (count, page_size, heads, dim), (page, slot, head, _) = pages.shape, pages.stride()
    if not slot or page < slot or page % slot or (heads > 1 and head != dim):
        return NO_GRID
    size, rows = pages.itemsize, (count - 1) * (page // slot) + page_size
    return Grid(pages.data_ptr(), rows, slot * size, heads, dim * size)
