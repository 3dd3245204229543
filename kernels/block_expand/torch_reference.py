"""Reference of an expanded table, id by id."""

from __future__ import annotations

import torch


def expand(block_table: torch.Tensor, out: torch.Tensor, *, ratio: int) -> torch.Tensor:
    """A copy of `out` with the kernel blocks of the table in its upper left."""
    expanded = out.clone()
    for row, blocks in enumerate(block_table.tolist()):
        ids = [_part(block, ratio, j) for block in blocks for j in range(ratio)]
        expanded[row, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
    return expanded


def _part(block: int, ratio: int, j: int) -> int:
    return block if block < 0 else block * ratio + j
