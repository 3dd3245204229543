"""What each program of a launch attends: listed on the device, once for all layers of a step."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvproof.kernels.backend import interpreted, power_above
from kvproof.kernels.interpreter import let_tensors_bound_loops
from kvproof.kernels.paged_prefill.arguments import Inputs
from kvproof.kernels.paged_prefill.tiling import Plan

FIELDS = 8
"""Numbers of an item, and of a merge."""

PARTS = 4
"""Parts per program that runs at a time, at most."""


class Work(NamedTuple):
    """The division of a batch; of use to every launch with the same lengths, window and shapes."""

    counts: torch.Tensor
    """int32: items of many rows, items of few, blocks whose parts are merged."""
    items: torch.Tensor
    """[any, 8] int32."""
    merges: torch.Tensor
    """[any, 8] int32."""
    parts: int
    """Room for parts of each KV head."""
    plan: Plan
    """Tiling that the items are cut by."""
    made_for: tuple[int, ...]
    """See `Inputs.cut`."""


def divided(given: Inputs, longest: int, plan: Plan) -> Work:
    """Divide a batch; waits for nothing."""
    from kvproof.kernels.paged_prefill.triton_kernel_work import divide

    if interpreted():
        let_tensors_bound_loops()
    tokens, batch = len(given.q), len(given.lengths)
    blocks = tokens * given.group // plan.rows + batch
    parts = _most_parts(given, longest, plan, blocks)
    room = torch.empty((1 + blocks + parts + parts // 2, FIELDS), dtype=torch.int32,
                       device=given.q.device)  # fmt: skip
    counts, items, merges = room[0], room[1 : 1 + blocks + parts], room[1 + blocks + parts :]
    divide[(1,)](
        given.query_starts, given.lengths, counts, items, merges,
        batch, given.window, plan.programs, parts, plan.overhead, plan.combining, plan.parting,
        GROUP=given.group, KV_HEADS=given.kv_heads, ROWS=plan.rows, TILE=plan.tile,
        STEPS=batch.bit_length(), BLOCKS=power_above(blocks), PIECES=plan.pieces,
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
