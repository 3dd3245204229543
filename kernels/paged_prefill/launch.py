"""Checks arguments, chooses tiles and launches; plain torch where Triton does not run."""

from __future__ import annotations

import torch

from kvproof.kernels.backend import (
    interpreted,
    power_above,
    runs_triton,
    start_options,
    starts_ahead,
)
from kvproof.kernels.checks import dtype_of, require, shape_of
from kvproof.kernels.paged_prefill import hopper, torch_reference
from kvproof.kernels.paged_prefill.arguments import Inputs, check, check_ids
from kvproof.kernels.paged_prefill.gathered import gathered
from kvproof.kernels.paged_prefill.outputs import Outputs, outputs
from kvproof.kernels.paged_prefill.plans import choose, why_not
from kvproof.kernels.paged_prefill.tiling import Plan
from kvproof.kernels.paged_prefill.work import Work, divided

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
    lse: torch.Tensor | None = None,
    causal: bool = True,
    tree: torch.Tensor | None = None,
    part: torch.Tensor | None = None,
    part_lse: torch.Tensor | None = None,
    check_contents: bool = False,
    plan: Plan | None = None,
    work: Work | None = None,
) -> None:
    """Causal attention of the new tokens of a ragged batch over their paged context.

    A step of an engine is one call: decodes, drafts, chunks and whole prompts together, each
    planned by its own lengths, in any order.

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
        lse: [tokens, heads] float32, any strides, written: natural logarithms of the sums of the
            exponentials of scores, that of the sink among them.
        causal: False: every token sees all positions of its request, as of a prefix that requests
            share; they may be fewer than its new tokens. Without a window.
        tree: [tokens] int64, for drafts that branch: a token sees new token j < 64 of its request,
            up to itself, only where bit j is set; -1 sees all. See `tree_masks`. Without a window.
        part: [tokens, heads, dim] of q's dtype, a token contiguous: attention of the same tokens
            over another part of their contexts; the answer is that over both. A sink belongs to
            one of them.
        part_lse: [tokens, heads] float32, its natural logarithms; where they are minus infinity
            the part is empty and not read.
        check_contents: Also check the values of the index tensors; waits for the device.
        plan: Another cut of the work than the rules choose.
        work: See `prefill_work`; made anew without it, which costs a small kernel.

    Raises:
        ArgumentError: An argument does not fit, with its value.

    """
    given = Inputs(
        q, k_pages, v_pages, block_table, lengths, query_starts,
        scale, window, soft_cap, sinks, k_scale, v_scale, causal, tree, part, part_lse,
    )  # fmt: skip
    check(given, out)
    least = longest_query if causal else 0
    require(longest >= least, f"longest is {longest}, expected {least} or more")
    if lse is not None:
        shape_of("lse", lse, out.shape[:2])
        dtype_of("lse", lse, (torch.float32,))
    if check_contents:
        check_ids(given, longest_query=longest_query, longest=longest)
    if not len(q) or not len(lengths) or not len(k_pages):
        return
    if not runs_triton(q):
        _in_torch(given, out, lse)
        return
    if work is None:
        work = _work(given, longest_query, longest, plan)
    require(
        work.made_for == given.cut, f"work is for {work.made_for}, the arguments are {given.cut}"
    )
    _launch(given, out, lse, longest, work)


def prefill_work(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    query_starts: torch.Tensor,
    *,
    longest_query: int,
    longest: int,
    window: int = 0,
    causal: bool = True,
) -> Work:
    """The division of a step among programs, made once for all its layers with the same shapes.

    The arguments are those of `paged_prefill`; of the tensors but lengths and query_starts only
    shapes, dtypes and strides matter. Waits for nothing.
    """
    given = Inputs(
        q, k_pages, v_pages, block_table, lengths, query_starts,
        1.0, window, 0.0, None, None, None, causal,
    )  # fmt: skip
    return _work(given, longest_query, longest, None)


def _work(given: Inputs, longest_query: int, longest: int, plan: Plan | None) -> Work:
    reason = why_not(given, longest, plan) if plan is not None else ""
    require(not reason, reason)
    return divided(given, longest, plan or choose(given, longest_query, longest))


def attend_many(
    given: Inputs, out: torch.Tensor, lse: torch.Tensor | None, *, longest_query: int, longest: int
) -> None:
    """Attend checked arguments, all requests with as many new tokens: drafts of decode."""
    _launch(given, out, lse, longest, _work(given, longest_query, longest, None))


def _in_torch(given: Inputs, out: torch.Tensor, lse: torch.Tensor | None) -> None:
    assert given.query_starts is not None
    rows = int(given.query_starts[-1])
    part, part_lse = given.part, given.part_lse
    alone = given._replace(part=None, part_lse=None)._asdict()
    found, sums = torch_reference.paged_prefill(
        **{name: value for name, value in alone.items() if not name.startswith("part")},
        dtype=torch.float32,
    )
    if part is not None and part_lse is not None:
        found, sums = torch_reference.with_part(found, sums, part, part_lse)
    out[:rows] = found[:rows].to(out.dtype)
    if lse is not None:
        lse[:rows] = sums[:rows]


def _launch(
    given: Inputs, out: torch.Tensor, lse: torch.Tensor | None, longest: int, work: Work
) -> None:
    if work.plan.gather:
        given = gathered(given, longest)
    to = outputs(given, out, lse, work)
    (hopper.run if work.plan.hopper else _run)(given, to, work)
    if not work.parts:
        return
    # Triton is an optional dependency: without it only the torch path is there.
    from kvproof.kernels.paged_prefill.triton_kernel_combine import combine

    rows, dim = min(COMBINED_ROWS, work.plan.rows), out.shape[2]
    ahead = starts_ahead(out.device)
    combine[(len(work.merges) * given.kv_heads * (work.plan.rows // rows),)](
        to.parts, to.weights, given.sinks, given.part, given.part_lse, out, lse, work.counts,
        work.merges, work.parts, *given.part_rows, *to.strides,
        KV_HEADS=given.kv_heads, GROUP=given.group, DIM=dim,
        COLUMNS=power_above(dim), BLOCK=work.plan.rows, ROWS=rows, DEPENDENT=ahead,
        **start_options(ahead=ahead),
    )  # fmt: skip


def _run(given: Inputs, to: Outputs, work: Work) -> None:
    from kvproof.kernels.paged_prefill.triton_kernel import prefill

    plan, dim = work.plan, given.q.shape[2]
    prefill[(len(work.items),)](
        given.q, given.k_pages, given.v_pages, to.out, to.parts, to.weights, to.lse,
        work.counts, work.items, given.block_table, given.tree, given.part, given.part_lse,
        given.sinks, given.k_scale, given.v_scale, given.scale, given.soft_cap, work.parts,
        given.block_table.stride(0), *given.part_rows,
        *given.q.stride()[:2], *given.k_pages.stride()[:3], *given.v_pages.stride()[:3],
        *to.strides, *given.scale_strides,
        GROUP=given.group, PAGE=given.page_size,
        DIM=dim, COLUMNS=max(16, power_above(dim)), ROWS=plan.rows, TILE=plan.tile,
        WINDOW=given.window, CAPPED=given.soft_cap > 0,
        SCALES={None: 0, 1: 1, 3: 2}[given.k_scale.dim() if given.k_scale is not None else None],
        INTERPRETED=interpreted(), num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
