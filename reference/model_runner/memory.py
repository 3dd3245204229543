"""The bytes of all blocks and states, and typed views of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kvproof.kernels.dispatch import StatePools, copy_states, state_pools
from kvproof.reference.core.block_pool import NULL_BLOCK
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.model.symbolic_memory import WrongAddress
from kvproof.reference.model_runner.page_map import Field, PageMap
from kvproof.reference.states.batch_copies import Run

POISON = 0xFF
"""Byte of memory that was freed or never written: NaN in every floating-point type."""

Ints = npt.NDArray[np.int64]


class Slots(NamedTuple):
    """Where entries lie: kernel blocks and the places inside them, both [rows, tokens]."""

    pages: torch.Tensor
    offsets: torch.Tensor


class PagedMemory:
    """One array [blocks, block bytes] shared by all groups; rows of states on request."""

    def __init__(self, pages: PageMap, config: CacheConfig, device: torch.device) -> None:
        self.map, self.device = pages, device
        shape = config.num_blocks, pages.block_bytes
        self.blocks = torch.full(shape, POISON, dtype=torch.uint8, device=device)
        self.blocks[NULL_BLOCK] = 0
        separate = config.state_pool == "separate" and pages.state_bytes
        rows = 1 + config.max_requests + config.prefix_cache_state_budget if separate else 0
        self.rows = torch.full((rows, pages.state_bytes), POISON, dtype=torch.uint8, device=device)
        self._kept: list[torch.Tensor] = []
        self._block_pool = state_pools([self.blocks])
        self._state_pool = state_pools([self.rows]) if rows else self._block_pool
        self._views = [
            {(field.layer, field.part.name): self._view(group, field) for field in fields}
            for group, fields in enumerate(pages.fields)
        ]

    def _view(self, group: int, field: Field) -> torch.Tensor:
        """Return [kernel blocks, tokens, *entry] of one tensor, without a copy."""
        part, config = field.part, self.map.configs[group]
        size = part.dtype.itemsize
        count = len(self.blocks) * config.kernel_ratio
        inner = torch.empty(part.shape, device="meta").stride()
        width = torch.Size(part.shape).numel()
        strides = (self.map.page_bytes(group) // size, width, *inner)
        flat = self.blocks.view(-1).view(part.dtype)
        shape = (count, config.kernel_size, *part.shape)
        return flat.as_strided(shape, strides, field.offset // size)

    def view(self, group: int, layer: int, name: str) -> torch.Tensor:
        """Return a tensor of a layer: [kernel blocks, tokens, *entry]."""
        return self._views[group][layer, name]

    # --- entries ---

    def slots(
        self, group: int, tables: Sequence[npt.NDArray[np.int32]], places: Ints, *, writes: int
    ) -> Slots:
        """Return the slots of `places` [rows, positions]; a negative one is in the null block.

        `tables` hold kernel-block ids [width] for each row; the last `writes` positions will be
        written. Raises WrongAddress for a position that a table is too short for, and for a write
        to the null block (B1).
        """
        size = self.map.configs[group].kernel_size
        index = np.maximum(places, 0) // size
        table = np.stack(tables).astype(np.int64)
        if index.size and index.max() >= table.shape[1]:
            most = table.shape[1] * size
            raise WrongAddress(f"tables of {most} tokens cannot hold position {places.max()}")
        pages = np.where(places < 0, NULL_BLOCK, np.take_along_axis(table, index, axis=1))
        written = pages[:, pages.shape[1] - writes :]
        if (written < (NULL_BLOCK + 1) * self.map.configs[group].kernel_ratio).any():
            raise WrongAddress("a step writes to the null block")
        return Slots(*(self._to_device(each) for each in (pages, np.maximum(places, 0) % size)))

    def _to_device(self, values: Ints) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)

    # --- states ---

    def state(self, ids: Sequence[int]) -> torch.Tensor:
        """Return a copy of the bytes of a state, [bytes]."""
        if len(self.rows):
            return self.rows[ids[0]].clone()
        return self.blocks[list(ids)].reshape(-1)[: self.map.state_bytes]

    def write_state(self, ids: Sequence[int], state: torch.Tensor) -> None:
        """Write the bytes of a state. Raises WrongAddress for id 0."""
        if min(ids) <= NULL_BLOCK:
            raise WrongAddress(f"a step writes a state to {list(ids)}: 0 is never used")
        if len(self.rows):
            self.rows[ids[0]] = state
            return
        for block, part in zip(ids, state.split(self.map.block_bytes), strict=False):
            self.blocks[block, : len(part)] = part

    @property
    def state_rows(self) -> int:
        """Ids that a state may have, the null row included."""
        return len(self.rows) or len(self.blocks)

    def copy_states(self, runs: Sequence[Run]) -> None:
        """Copy the rows of states, all in one launch (S3)."""
        pairs = [(run.source + n, run.destination + n) for run in runs for n in range(run.size)]
        _copy_rows(self._state_pool, pairs)

    # --- blocks ---

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, destination) each (T6). Raises WrongAddress for block 0."""
        if any(target == NULL_BLOCK for _, target in pairs):
            raise WrongAddress("a step copies into the null block")
        _copy_rows(self._block_pool, pairs)

    def sleep(self, *, keep: bool) -> None:
        """Fill all pages and states with NaN; `keep` their bytes in host memory (Q6).

        The memory stays allocated: transfers and captured graphs know its addresses.
        """
        pools = self.blocks, self.rows
        self._kept = [pool.to("cpu", copy=True) for pool in pools] if keep else []
        for pool in pools:
            pool.fill_(POISON)
        self.blocks[NULL_BLOCK] = 0

    def wake(self) -> None:
        """Write the bytes that were kept (Q6)."""
        for pool, kept in zip((self.blocks, self.rows), self._kept, strict=False):
            pool.copy_(kept)
        self._kept = []

    def poison(self, blocks: Sequence[int]) -> None:
        """Destroy the content of freed blocks."""
        self.blocks[torch.tensor(list(blocks), dtype=torch.int64, device=self.device)] = POISON


def _copy_rows(pool: StatePools, pairs: Sequence[tuple[int, int]]) -> None:
    if pairs:
        rows = torch.tensor(pairs, dtype=torch.int64).T.contiguous().to(pool.tiles.device)
        copy_states(pool, *rows)
