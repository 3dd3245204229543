"""Masks of drafts that branch."""

from __future__ import annotations

import torch

from kvproof.kernels.checks import require
from kvproof.kernels.paged_prefill.arguments import MOST_TREE


def tree_masks(parents: torch.Tensor) -> torch.Tensor:
    """Bits of the drafts that each draft of a tree sees: itself and its ancestors.

    Args:
        parents: [..., n] of any integers, n at most 64: the number of the draft before, -1 for one
            that follows the cached tokens. Parents come before their children.

    Returns:
        int64 [..., n], `tree` of `paged_prefill` when flattened. Waits for nothing.

    Raises:
        ArgumentError: A tree has more than 64 drafts.

    """
    count = parents.shape[-1]
    require(count <= MOST_TREE, f"a tree has {count} drafts, expected at most {MOST_TREE}")
    own = torch.ones((), dtype=torch.int64, device=parents.device) << torch.arange(
        count, device=parents.device
    )
    seen = own.expand(parents.shape)
    above = parents.long()
    # A draft sees what its ancestor sees, which is then twice as far away.
    for _ in range(count.bit_length()):
        here = above >= 0
        at = above.clamp_min(0)
        seen = seen | torch.where(here, seen.gather(-1, at), 0)
        above = torch.where(here, above.gather(-1, at), -1)
    return seen
