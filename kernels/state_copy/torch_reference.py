"""The recurrent-state copy in plain torch."""

from __future__ import annotations

import torch


def copy_one_by_one(
    pool: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor
) -> torch.Tensor:
    """A copy of the pool [rows, ...], copied row by row."""
    result = pool.clone()
    for source, destination in zip(sources.tolist(), destinations.tolist(), strict=True):
        if source > 0 and destination > 0:
            result[destination] = pool[source]
    return result


def copy_pool(pool: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor) -> None:
    """Copy all rows of a pool at once, in place."""
    real = (sources > 0) & (destinations > 0)
    flat = pool.view(torch.uint8) if pool.dim() > 1 else pool
    flat[destinations[real].long()] = flat[sources[real].long()]
