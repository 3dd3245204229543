"""Where a launch writes."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvproof.kernels.paged_prefill.arguments import Inputs
from kvproof.kernels.paged_prefill.work import Work


class Outputs(NamedTuple):
    """Results, and the parts of blocks that several programs attend."""

    out: torch.Tensor
    lse: torch.Tensor | None
    parts: torch.Tensor
    """float32 [kv heads, parts, rows, dim]."""
    weights: torch.Tensor
    """float32 [kv heads, parts, rows], logarithms to base 2."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Of tokens and heads, of results and of their logarithms."""
        lse = (0, 0) if self.lse is None else self.lse.stride()
        return (*self.out.stride()[:2], *lse)


def outputs(given: Inputs, out: torch.Tensor, lse: torch.Tensor | None, work: Work) -> Outputs:
    """Results with room for parts."""
    rows = (given.kv_heads, work.parts, work.plan.rows)
    parts = torch.empty((*rows, out.shape[2]), dtype=torch.float32, device=out.device)
    return Outputs(out, lse, parts, parts.new_empty(rows))
