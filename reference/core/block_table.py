"""Request -> blocks -> kernel blocks (K1-K3).

Block i of a table holds tokens [i * block_size, (i + 1) * block_size) of its request (T7).
A kernel sees each block as `ratio` smaller pages: block b is kernel blocks b * ratio onwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvproof.reference.core.block_pool import NULL_BLOCK, Ids

Table = npt.NDArray[np.int32]
"""[width] ids of one request in one group."""

BatchTable = npt.NDArray[np.int32]
"""[requests, width] block ids, padded with the null block."""


def pad(tables: Sequence[Ids | Table], width: int = 0) -> BatchTable:
    """Stack to [len(tables), width or longest], padded with 0. Raises ValueError if too long."""
    longest = max(map(len, tables), default=0)
    if width and longest > width:
        raise ValueError(f"a table has {longest} blocks, the batch has room for {width}")
    batch = np.full((len(tables), width or longest), NULL_BLOCK, np.int32)
    for row, table in zip(batch, tables, strict=True):
        row[: len(table)] = table
    return batch


def expand(batch: BatchTable, ratio: int) -> BatchTable:
    """Turn block ids [..., width] into kernel-block ids [..., width * ratio] (K3).

    One broadcast after padding; the null block becomes its own kernel blocks 0 .. ratio - 1.
    Returns the argument itself if `ratio` is 1.
    """
    if ratio == 1:
        return batch
    pages = batch[..., None] * np.int32(ratio) + np.arange(ratio, dtype=np.int32)
    wide = (*batch.shape[:-1], batch.shape[-1] * ratio)
    return pages.reshape(wide)
