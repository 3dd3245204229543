"""Merge of parts in plain torch."""

from __future__ import annotations

import torch


def merged(
    parts: torch.Tensor, sums: torch.Tensor, *, compute: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result [tokens, heads, dim] and its logarithms [tokens, heads], both in `compute`.

    Shapes are those of `merge_parts`.
    """
    sums = sums.to(compute)
    whole = torch.logsumexp(sums, 0)
    weights = torch.where(sums == float("-inf"), 0, torch.exp(sums - whole))
    found = torch.where(weights[..., None] > 0, parts.to(compute), 0) * weights[..., None]
    return found.sum(0), whole
