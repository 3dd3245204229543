"""How a launch cuts its work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Tiling and kernel.

    `rows` query rows and `tile` tokens of the context at a time; the portable kernel counts the
    heads of a group as rows. `hopper` selects the kernel for compute capability 9, in which
    `together` heads go through all blocks of rows before others do and `copiers` warps copy keys,
    as many values. `splits` divides the context among programs. `gather` first copies the context
    into rows of q's dtype.
    """

    rows: int
    tile: int
    stages: int
    warps: int = 4
    splits: int = 1
    gather: bool = False
    hopper: bool = False
    together: int = 1
    copiers: int = 1


def blocks_of(rows: int, batch: int, block: int) -> int:
    """Upper bound of the blocks of query rows for any division among the requests."""
    return rows // block + batch
