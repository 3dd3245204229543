"""What each program of a launch attends: listed on the device, once for all layers of a step."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvproof.kernels.backend import interpreted, power_above
from kvproof.kernels.interpreter import let_tensors_bound_loops
from kvproof.kernels.paged_prefill.arguments import Inputs
from kvproof.kernels.paged_prefill.tiling import Plan

FIELDS = 12
"""Numbers of an item, and of a merge."""

WARP_BLOCKS = 256
"""Blocks that one warp divides: sums within a warp take the least time."""

PARTS = 4
"""Parts per program that runs at a time, at most."""


class Work(NamedTuple):
    """The division of a batch; of use to every launch with the same lengths, window and shapes."""

    counts: torch.Tensor
    """int32: items, and blocks of a KV head whose parts are merged."""
    items: torch.Tensor
    """int32 [programs, numbers of an item], in the order in which programs start."""
    merges: torch.Tensor
    """int32 [any, numbers of a merge]."""
    parts: int
    """Room for parts of each KV head."""
    plan: Plan
    """Tiling that the items are cut by."""
    made_for: tuple[int, ...]
    """See `Inputs.cut`."""
    after_part: bool = False
    """The kernel right before the launch makes the other part, and has waited for all else."""


def divided(given: Inputs, longest: int, plan: Plan) -> Work:
    """Divide a batch; waits for nothing."""
    from kvproof.kernels.paged_prefill.triton_kernel_work import divide

    if interpreted():
        let_tensors_bound_loops()
    tokens, batch = len(given.q), len(given.lengths)
    blocks = tokens * given.group // plan.rows + batch
    parts = _most_parts(given, longest, plan, blocks)
    listed = (blocks + parts) * given.kv_heads
    room = torch.empty((1 + listed + parts // 2, FIELDS), dtype=torch.int32, device=given.q.device)
    counts, items, merges = room[0], room[1 : 1 + listed], room[1 + listed :]
    divide[(given.kv_heads,)](
        given.query_starts, given.lengths, counts, items, merges,
        batch, batch.bit_length(), given.window, plan.programs, parts, plan.overhead,
        plan.combining, plan.parting,
        GROUP=given.group, KV_HEADS=given.kv_heads, ROWS=plan.rows, TILE=plan.tile,
        BLOCKS=power_above(blocks), PIECES=plan.pieces, CUT=parts > 0,
        EACH=tokens // batch if given.query_starts is None else 0, CAUSAL=given.causal,
        SORTED=plan.persistent,
        num_warps=max(1, min(8, power_above(blocks) // WARP_BLOCKS)),
    )  # fmt: skip
    return Work(counts, items, merges, parts, plan, given.cut)


def _most_parts(given: Inputs, longest: int, plan: Plan, blocks: int) -> int:
    """Parts of a KV head at most; none where a block sees one tile.

    Any window may lie on either side of the end of a tile.
    """
    if longest <= plan.tile or plan.pieces == 1:
        return 0
    if plan.pieces:
        return blocks * plan.pieces
    return -(-PARTS * plan.programs // given.kv_heads)
