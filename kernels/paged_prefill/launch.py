"""Checks arguments, chooses tiles and launches; plain torch where Triton does not run."""

from __future__ import annotations

import torch

from kvproof.kernels.backend import interpreted, power_above, runs_triton
from kvproof.kernels.checks import require
from kvproof.kernels.interpreter import let_tensors_bound_loops
from kvproof.kernels.paged_prefill import hopper, torch_reference
from kvproof.kernels.paged_prefill.arguments import Inputs, check, check_ids
from kvproof.kernels.paged_prefill.gathered import gathered
from kvproof.kernels.paged_prefill.plans import choose, why_not
from kvproof.kernels.paged_prefill.tiling import Plan, blocks_of

COMBINED_ROWS = 8
"""Rows of one head that a program combines."""


def paged_prefill(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    query_starts: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    longest_query: int,
    longest: int,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    check_contents: bool = False,
    plan: Plan | None = None,
) -> None:
    """Causal attention of the new tokens of a ragged batch over their paged context.

    The K and V of the new tokens are already in the pages. Token i of a request with n new tokens
    stands at position length - n + i and sees the positions up to its own, of these only the last
    `window` if that is not 0. Rows of `out` from query_starts[batch] on are left alone.

    Args:
        q: [tokens, heads, dim] bfloat16 or float16, the requests one after the other.
        k_pages: [pages, page, kv heads, dim] of q's dtype, float8_e4m3fn or int8; may be a view
            of a larger pool, dim contiguous.
        v_pages: Like `k_pages`.
        block_table: [batch, entries] int32: the page of each `page` positions of a request.
        lengths: [batch] int32, cached and new tokens.
        query_starts: [batch + 1] int32: request i owns the tokens from query_starts[i] to
            query_starts[i + 1] - 1, perhaps none.
        out: [tokens, heads, dim] of q's dtype, written.
        scale: Factor of the scores, above 0.
        longest_query: No request has more new tokens.
        longest: No request has more tokens.
        window: How many positions a token sees, itself included; 0 for all.
        soft_cap: Scores x become soft_cap * tanh(x / soft_cap); 0 for none.
        sinks: [heads] float32: a score that takes part in the softmax without a value, or nothing.
        k_scale: [kv heads] float32 for float8_e4m3fn, [pages, page, kv heads] float32 for int8:
            what stored values are multiplied by.
        v_scale: Like `k_scale`.
        check_contents: Also check the values of the index tensors; waits for the device.
        plan: Another cut of the work than the rules choose.

    Raises:
        ArgumentError: An argument does not fit, with its value.

    """
    given = Inputs(
        q, k_pages, v_pages, block_table, lengths, query_starts,
        scale, window, soft_cap, sinks, k_scale, v_scale,
    )  # fmt: skip
    check(given, out)
    require(longest >= longest_query, f"longest is {longest}, expected {longest_query} or more")
    if check_contents:
        check_ids(given, longest_query=longest_query, longest=longest)
    if not len(q) or not len(lengths) or not len(k_pages):
        return
    if plan is not None:
        reason = why_not(given, longest, plan)
        require(not reason, reason)
    if runs_triton(q):
        if interpreted():
            let_tensors_bound_loops()
        _launch(given, out, longest, plan or choose(given, longest_query, longest))
    else:
        rows = int(query_starts[-1])
        found = torch_reference.paged_prefill(**given._asdict(), dtype=torch.float32)
        out[:rows] = found[:rows].to(out.dtype)


def _launch(given: Inputs, out: torch.Tensor, longest: int, plan: Plan) -> None:
    run = hopper.run if plan.hopper else _run
    if plan.gather:
        given = gathered(given, longest)
    if plan.splits == 1:
        run(given, out, None, plan)
        return
    # Triton is an optional dependency: without it only the torch path is there.
    from kvproof.kernels.paged_prefill.triton_kernel_combine import combine

    tokens, heads, dim = out.shape
    parts = torch.empty((plan.splits, *out.shape), dtype=torch.float32, device=out.device)
    weights = torch.empty(parts.shape[:3], dtype=torch.float32, device=out.device)
    run(given, parts[0], weights, plan)
    combine[(-(-tokens * heads // COMBINED_ROWS),)](
        parts, weights, given.sinks, out, given.query_starts, len(given.lengths),
        tokens * heads, *out.stride()[:2],
        HEADS=heads, DIM=dim, COLUMNS=power_above(dim), SPLITS=plan.splits, ROWS=COMBINED_ROWS,
    )  # fmt: skip


def _run(given: Inputs, out: torch.Tensor, weights: torch.Tensor | None, plan: Plan) -> None:
    from kvproof.kernels.paged_prefill.triton_kernel import prefill

    tokens, heads, dim = given.q.shape
    batch = len(given.lengths)
    blocks = blocks_of(tokens * given.group, batch, plan.rows) * given.kv_heads
    prefill[(blocks, plan.splits)](
        given.q, given.k_pages, given.v_pages, out, weights,
        given.block_table, given.lengths, given.query_starts,
        given.sinks, given.k_scale, given.v_scale,
        given.scale, given.soft_cap, batch, heads, tokens, given.block_table.stride(0),
        *given.q.stride()[:2], *given.k_pages.stride()[:3], *given.v_pages.stride()[:3],
        *out.stride()[:2], *given.scale_strides,
        KV_HEADS=given.kv_heads, GROUP=given.group, PAGE=given.page_size,
        DIM=dim, COLUMNS=max(16, power_above(dim)), ROWS=plan.rows, TILE=plan.tile,
        WINDOW=given.window, CAPPED=given.soft_cap > 0,
        SCALES={None: 0, 1: 1, 3: 2}[given.k_scale.dim() if given.k_scale is not None else None],
        SPLITS=plan.splits, INTERPRETED=interpreted(),
        num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
