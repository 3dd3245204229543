"""The slot mapping kernel of the worker's block tables, as its Triton source computes it."""

from __future__ import annotations

from typing import Any

import numpy as np


def slot_mapping(
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc: Any,
    positions: Any,
    block_table: Any,
    block_table_stride: int,
    slot_mapping: Any,
    kv_cache_block_size: int,
    total_cp_world_size: int,
    total_cp_rank: int,
    cp_kv_cache_interleave_size: int,
    pad_id: int,
    block_size: int,
) -> None:
    """Fill the slot of every token; tensors are those of the launch, sizes in tokens."""
    del block_table_stride, total_cp_rank, cp_kv_cache_interleave_size, block_size
    assert total_cp_world_size == 1, "context parallel runs are not started"
    starts, at = query_start_loc.numpy(), positions.numpy()
    slots, table = slot_mapping.numpy(), block_table.numpy()
    rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    at = at[: len(rows)]
    blocks = table[rows, at // kv_cache_block_size].astype(np.int64)
    slots[: len(rows)] = blocks * kv_cache_block_size + at % kv_cache_block_size
    slots[len(rows) : max_num_tokens] = pad_id
    del num_tokens


_WITH_KERNEL_BLOCKS = 15
"""Arguments of the kernel in 0.31."""


def launch_slot_mapping(*given: Any) -> None:
    """Take the arguments in the kernel's order; 0.31 names sizes of blocks and kernel blocks."""
    if len(given) == _WITH_KERNEL_BLOCKS:
        tokens, most, starts, at, table, stride, size, slots, _, _, *rest = given
        given = (tokens, most, starts, at, table, stride, slots, size, *rest)
    slot_mapping(*given)
