"""Checks arguments, chooses tiles and launches; plain torch where Triton does not run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvproof.kernels.backend import (
    multiprocessors,
    power_above,
    runs_triton,
    start_options,
    starts_ahead,
)
from kvproof.kernels.checks import (
    dtype_of,
    ids_in_range,
    last_dim_contiguous,
    require,
    same_device,
    shape_of,
)

TILE = 2048
"""Most ids that a program writes: 8 KiB."""

PROGRAMS = 8
"""Fewest programs per multiprocessor, before a program writes more."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Tiling: blocks per program, its warps, and whether it may start early."""

    blocks: int
    warps: int
    ahead: bool


def block_expand(
    block_table: torch.Tensor,
    *,
    ratio: int,
    out: torch.Tensor | None = None,
    check_ids: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Kernel blocks id * ratio .. id * ratio + ratio - 1 of every block of a table (K3).

    The null block 0 becomes its own kernel blocks; a negative id stays unchanged, `ratio` times.

    Args:
        block_table: [rows, blocks] int32.
        ratio: Kernel blocks of a block; with 1 and without `out` nothing is copied.
        out: [at least rows, at least blocks * ratio] int32; the rest of it stays as it is.
        check_ids: Also check that every kernel block fits into int32; waits for the device.
        tile: Another cut of the work than the rules choose.

    Returns:
        [rows, blocks * ratio] int32, the upper left of `out` if it was given.

    Raises:
        ArgumentError: An argument does not fit, with its value.

    """
    shape_of("block_table", block_table, (None, None))
    dtype_of("block_table", block_table, (torch.int32,))
    last_dim_contiguous("block_table", block_table)
    require(ratio >= 1, f"ratio is {ratio}, expected 1 or more")
    if check_ids:
        ids_in_range("block_table", block_table, low=-(1 << 31), high=(1 << 31) // ratio)
    if ratio == 1 and out is None:
        return block_table
    target = _target(block_table, ratio, out)
    if target.numel():
        expand_into(target, block_table, ratio, tile=tile)
    return target


def expand_into(
    target: torch.Tensor, block_table: torch.Tensor, ratio: int, *, tile: Tile | None = None
) -> None:
    """Write the expansion, unchecked; the table may lie in pinned memory, which the GPU reads."""
    if runs_triton(target):
        _launch(block_table, target, ratio, tile)
    else:
        expand_with_torch(block_table, target, ratio)


def expand_with_torch(block_table: torch.Tensor, target: torch.Tensor, ratio: int) -> None:
    """Write the expansion with plain torch operations."""
    part = torch.arange(ratio, dtype=torch.int32, device=block_table.device)
    ids = block_table[:, :, None]
    expanded = torch.where(ids < 0, ids, ids * ratio + part)
    target.copy_(expanded.view(target.shape))


def choose(rows: int, blocks: int, ratio: int, device: torch.device) -> Tile:
    """Tiling for a table: small ones are spread over all multiprocessors."""
    most = max(1, TILE // power_above(ratio))
    spread = -(-rows * blocks // (PROGRAMS * multiprocessors(device)))
    size = max(min(32, most), min(most, power_above(spread)))
    warps = max(1, min(4, size * power_above(ratio) // 256))
    return Tile(blocks=size, warps=warps, ahead=starts_ahead(device))


def _target(block_table: torch.Tensor, ratio: int, out: torch.Tensor | None) -> torch.Tensor:
    rows, blocks = block_table.shape
    if out is None:
        return block_table.new_empty((rows, blocks * ratio))
    shape_of("out", out, (None, None))
    dtype_of("out", out, (torch.int32,))
    last_dim_contiguous("out", out)
    same_device(block_table=block_table, out=out)
    require(
        out.shape[0] >= rows and out.shape[1] >= blocks * ratio,
        f"out holds {out.shape[0]} rows of {out.shape[1]} kernel blocks, but {rows} rows of"
        f" {blocks} blocks are {blocks * ratio} kernel blocks each",
    )
    return out[:rows, : blocks * ratio]


def _launch(block_table: torch.Tensor, target: torch.Tensor, ratio: int, tile: Tile | None) -> None:
    # Triton is an optional dependency: without it only the torch path is there.
    from kvproof.kernels.block_expand.triton_kernel import expand

    rows, blocks = block_table.shape
    if block_table.is_contiguous() and target.is_contiguous():
        rows, blocks = 1, rows * blocks
    cut = tile or choose(rows, blocks, ratio, target.device)
    expand[(-(-blocks // cut.blocks), rows)](
        block_table, target, blocks, block_table.stride(0), target.stride(0),
        RATIO=ratio, COLUMNS=power_above(ratio), BLOCK=cut.blocks, DEPENDENT=cut.ahead,
        num_warps=cut.warps, **start_options(ahead=cut.ahead),
    )  # fmt: skip
