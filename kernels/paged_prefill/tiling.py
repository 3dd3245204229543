"""How a launch cuts its work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Tiling and kernel, and the times that divide the work among programs.

    `rows` query rows, the heads of a group among them, and `tile` tokens of the context at a time.
    `hopper` selects the kernel for compute capability 9, in which `copiers` warps copy keys, as
    many values. `gather` first copies the context into rows of q's dtype. `pieces`: parts of the
    block of rows that sees most; 0 leaves their number to the device.

    `persistent`: each of `programs` attends one item after the other, instead of one.

    Of times the unit is a tile of half a block of rows: `overhead` of a program, `combining` of the
    launch that merges parts, `parting` of a part. `programs` run at a time.
    """

    rows: int
    tile: int
    stages: int
    warps: int = 4
    pieces: int = 0
    gather: bool = False
    hopper: bool = False
    copiers: int = 1
    persistent: bool = False
    programs: int = 1
    overhead: float = 1.0
    combining: float = 1.0
    parting: float = 0.0
