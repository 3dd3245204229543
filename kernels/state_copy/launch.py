"""Checked entry points of the recurrent-state copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvproof.kernels.backend import interpreted, multiprocessors, runs_triton, starts_ahead
from kvproof.kernels.checks import dtype_of, ids_in_range, require, same_device, shape_of
from kvproof.kernels.interpreter import let_tensors_bound_loops
from kvproof.kernels.state_copy.torch_reference import copy_pool

TILE_BYTES = 4096
"""Bytes of one program: two accesses of 16 bytes per thread. Larger programs are slower."""


WARPS = 4
PROGRAMS = 16
"""Fewest programs per multiprocessor: as many of 4 warps are resident."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StatePools:
    """Pools whose rows with equal index belong to one request, for example of every layer.

    `tiles` is the work of one pair, int64 [tiles, 3] on the device: address of a tile in row 0,
    bytes from row to row, and words of `word` bytes in the tile.
    """

    pools: tuple[torch.Tensor, ...]
    rows: int
    word: int
    tile: int
    tiles: torch.Tensor


def state_pools(pools: Sequence[torch.Tensor]) -> StatePools:
    """Describe pools [rows, ...] of any shapes and dtypes; each row is dense.

    Raises ArgumentError: no pool, unequal numbers of rows or devices, or rows with gaps.
    """
    require(len(pools) > 0, "pools is empty, expected at least one tensor")
    for index, pool in enumerate(pools):
        require(
            pool.dim() >= 1 and pool.shape[0] == pools[0].shape[0] > 0,
            f"pool {index} has shape {tuple(pool.shape)}, pool 0 {tuple(pools[0].shape)}:"
            " all need the same number of rows, at least 1",
        )
        require(
            pool[0].is_contiguous(),
            f"pool {index} has strides {pool.stride()}: each row must be contiguous",
        )
    same_device(**{f"pool {index}": pool for index, pool in enumerate(pools)})
    numbers = [number for pool in pools for number in _addresses(pool)]
    word = math.gcd(16, *numbers)
    tile = TILE_BYTES // word
    work = [entry for pool in pools for entry in _tiles(pool, word, tile)]
    return StatePools(
        pools=tuple(pools),
        rows=pools[0].shape[0],
        word=word,
        tile=tile,
        tiles=torch.tensor(work, dtype=torch.int64, device=pools[0].device).view(-1, 3),
    )


def copy_rows(
    states: StatePools,
    sources: torch.Tensor,
    destinations: torch.Tensor,
    *,
    check_rows: bool = False,
) -> None:
    """Copy row `sources[i]` to row `destinations[i]` in every pool, in one launch.

    Args:
        states: The pools.
        sources: int32 or int64 [pairs].
        destinations: Of the same shape. A pair with a row below 1 is padding and is skipped, so a
            CUDA graph can have a fixed number of pairs; row 0 is never copied.
        check_rows: Refuse rows that do not exist, destinations that occur twice, and destinations
            that are sources too (S3). Waits for the device; unchecked, such pairs race.

    Raises:
        ArgumentError: A shape, dtype or device does not fit, or rows do not with `check_rows`.

    """
    check(states, sources, destinations, check_rows=check_rows)
    if not sources.numel() or not states.tiles.numel():
        return
    if runs_triton(sources):
        launch(states, sources, destinations)
        return
    for pool in states.pools:
        copy_pool(pool, sources, destinations)


def check(
    states: StatePools, sources: torch.Tensor, destinations: torch.Tensor, *, check_rows: bool
) -> None:
    """Refuse invalid arguments, before anything is enqueued."""
    for name, rows in (("sources", sources), ("destinations", destinations)):
        shape_of(name, rows, (sources.numel(),))
        dtype_of(name, rows, (torch.int32, torch.int64))
        require(rows.is_contiguous(), f"{name} has strides {rows.stride()}, expected (1,)")
    same_device(pools=states.tiles, sources=sources, destinations=destinations)
    if check_rows:
        _check_rows(states.rows, sources, destinations)


def launch(states: StatePools, sources: torch.Tensor, destinations: torch.Tensor) -> None:
    # Triton is an optional dependency: without it only the torch path is there.
    """Launch the kernel on checked arguments."""
    from kvproof.kernels.state_copy.triton_kernel import copy_rows as kernel

    if interpreted():
        let_tensors_bound_loops()
    count, pairs = states.tiles.shape[0], sources.numel()
    # A program goes through the pairs: as many programs as a pair has tiles, so that padding costs
    # none, but enough for the whole device if that are few.
    programs = max(count, PROGRAMS * multiprocessors(sources.device))
    ahead = starts_ahead(sources.device)
    kernel[(min(count * pairs, programs),)](
        states.tiles, sources, destinations, count, pairs,
        WORD=states.word, TILE=states.tile, DEPENDENT=ahead,
        num_warps=WARPS, launch_pdl=ahead,
    )  # fmt: skip


def _addresses(pool: torch.Tensor) -> tuple[int, int, int]:
    size = pool.element_size()
    return pool.data_ptr(), pool.stride(0) * size, pool[0].numel() * size


def _tiles(pool: torch.Tensor, word: int, most: int) -> list[tuple[int, int, int]]:
    """Equal tiles of one row, whole warps of 32 words each; a short last one would idle."""
    address, stride, size = _addresses(pool)
    words = size // word
    count = -(-words // most)
    if not count:
        return []
    step = min(most, -(-words // count // 32) * 32)
    return [
        (address + start * word, stride, min(step, words - start))
        for start in range(0, words, step)
    ]


def _check_rows(rows: int, sources: torch.Tensor, destinations: torch.Tensor) -> None:
    real = (sources > 0) & (destinations > 0)
    read, written = sources[real], destinations[real]
    ids_in_range("sources", read, low=1, high=rows)
    ids_in_range("destinations", written, low=1, high=rows)
    unique, times = written.unique(return_counts=True)
    twice = unique[times > 1].tolist()
    require(not twice, f"destinations holds rows {twice} more than once")
    both = unique[torch.isin(unique, read)].tolist()
    require(not both, f"rows {both} are sources and destinations, expected disjoint lists")
