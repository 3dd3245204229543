"""The public function: a decode over this rank's tokens, one exchange, one merge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kvproof.kernels.checks import require, shape_of
from kvproof.kernels.paged_decode import paged_decode
from kvproof.kernels.paged_decode.workspace import Workspace
from kvproof.kernels.part_merge import merge_parts

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def context_parallel_decode(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor | None,
    block_table: torch.Tensor,
    owned: torch.Tensor,
    *,
    out: torch.Tensor,
    scale: float,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    group: ProcessGroup | None = None,
    tables_ready: bool = False,
    space: Workspace | None = None,
) -> None:
    """Attend the last q_tokens positions of each request over contexts that ranks share.

    Every rank of the group calls it with the same queries and gets the whole answer. A rank's pages
    hold its own tokens without gaps, see `owned_tokens`. A window has no version of this.

    Args:
        q: [batch, q_tokens, heads, dim], contiguous; as in `paged_decode`, equal on all ranks.
        k_pages: This rank's pages, as in `paged_decode`.
        v_pages: As `k_pages`; `None` with MLA.
        block_table: [batch, any] int32, pages of this rank.
        owned: [batch, q_tokens] int32, see `owned_lengths`.
        out: [batch, q_tokens, heads, value_dim] of q's dtype, contiguous, written.
        scale: Logits are q times k times `scale`.
        soft_cap: As in `paged_decode`.
        sinks: [heads] float32, equal on all ranks; they take weight once.
        k_scale: As in `paged_decode`.
        v_scale: As in `paged_decode`.
        lse: [batch, q_tokens, heads] float32, contiguous, written: natural logarithms over all
            ranks.
        group: The ranks; without it the default group of torch.distributed.
        tables_ready: As in `paged_decode`.
        space: Workspace of `paged_decode` for batch * q_tokens requests of one query token.

    Raises:
        ArgumentError: An argument does not fit the others.

    """
    from torch import distributed

    rows, (heads, dim) = q.shape[0] * q.shape[1], out.shape[2:]
    parts = out.new_empty((distributed.get_world_size(group), rows, heads, dim))
    sums = parts.new_empty(parts.shape[:3], dtype=torch.float32)
    rank = distributed.get_rank(group)
    part_of_rank(
        q, k_pages, v_pages, block_table, owned, out=parts[rank], lse=sums[rank], scale=scale,
        soft_cap=soft_cap, sinks=None if rank else sinks, k_scale=k_scale, v_scale=v_scale,
        tables_ready=tables_ready, space=space,
    )  # fmt: skip
    # Renamed after torch 2.12.
    gathered = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    gathered(sums.flatten(0, 1), sums[rank], group=group)
    gathered(parts.flatten(0, 1), parts[rank], group=group)
    whole = None if lse is None else lse.view(rows, heads)
    merge_parts(parts, sums, out=out.view(rows, heads, dim), out_sums=whole)


def part_of_rank(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor | None,
    block_table: torch.Tensor,
    owned: torch.Tensor,
    *,
    out: torch.Tensor,
    lse: torch.Tensor,
    scale: float,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    tables_ready: bool = False,
    space: Workspace | None = None,
) -> None:
    """Attend over this rank's tokens alone.

    `out` is [batch * q_tokens, heads, value_dim], `lse` [batch * q_tokens, heads]. A query token
    is a request of its own: how much it sees of a rank is no matter of its neighbours.
    """
    require(q.dim() == 4, f"q has shape {tuple(q.shape)}, expected (batch, q_tokens, heads, dim)")
    batch, q_tokens = q.shape[:2]
    shape_of("owned", owned, (batch, q_tokens))
    shape_of("block_table", block_table, (batch, None))
    if q_tokens > 1:
        block_table = block_table.repeat_interleave(q_tokens, 0)
    paged_decode(
        q.view(batch * q_tokens, 1, *q.shape[2:]), k_pages, v_pages, block_table, owned.view(-1),
        out=out[:, None], lse=lse[:, None], scale=scale, soft_cap=soft_cap, sinks=sinks,
        k_scale=k_scale, v_scale=v_scale, tables_ready=tables_ready and q_tokens == 1, space=space,
    )  # fmt: skip
