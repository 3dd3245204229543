"""The public function: attention over the rest of each request, then over prefixes, merged."""

from __future__ import annotations

import torch

from kvproof.kernels.checks import dtype_of, shape_of
from kvproof.kernels.paged_decode import paged_decode
from kvproof.kernels.paged_decode.workspace import Workspace
from kvproof.kernels.paged_prefill import Work, paged_prefill, prefill_work


def shared_prefix_decode(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    prefix_table: torch.Tensor,
    prefix_lengths: torch.Tensor,
    prefix_starts: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    out: torch.Tensor,
    scale: float,
    most_sharing: int,
    longest_prefix: int,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    tables_ready: bool = False,
    work: Work | None = None,
    space: Workspace | None = None,
) -> None:
    """Attend the last q_tokens positions of each request over its prefix and its own tokens.

    The requests of a prefix follow each other in the batch. A request that shares nothing belongs
    to a prefix of its own, of any length, 0 among them. A window has no use for prefixes.

    Args:
        q: [batch, q_tokens, heads, dim], as in `paged_decode`.
        k_pages: [pages, page, kv_heads, dim], as in `paged_prefill`; prefixes and requests are of
            one pool.
        v_pages: Like `k_pages`.
        prefix_table: [prefixes, any] int32, ids of pages.
        prefix_lengths: [prefixes] int32, tokens of each prefix; any number, also within a page.
        prefix_starts: [prefixes + 1] int32: the query tokens from prefix_starts[i] to
            prefix_starts[i + 1] - 1, counted over the batch, see prefix i. Each sees one.
        block_table: [batch, any] int32, pages of each request after its prefix.
        lengths: [batch] int32, tokens after the prefix, the q_tokens among them.
        out: [batch, q_tokens, heads, dim] of q's dtype, contiguous, written.
        scale: Logits are q times k times `scale`.
        most_sharing: No prefix has more requests.
        longest_prefix: No prefix has more tokens.
        soft_cap: Logits become soft_cap * tanh(logits / soft_cap); 0 leaves them.
        sinks: [heads] float32.
        k_scale: float32 [kv_heads] for float8, [pages, page, kv_heads] for int8.
        v_scale: Like `k_scale`.
        lse: [batch, q_tokens, heads] float32, contiguous, written: natural logarithms of sums over
            prefix, own tokens and sink.
        tables_ready: As in `paged_decode`.
        work: See `prefix_work`; made anew without it.
        space: Workspace of `paged_decode`.

    Raises:
        ArgumentError: An argument does not fit the others.

    """
    _check(q, prefix_table, prefix_lengths, prefix_starts)
    own = torch.empty_like(q, memory_format=torch.contiguous_format)
    sums = q.new_empty(q.shape[:3], dtype=torch.float32)
    paged_decode(
        q, k_pages, v_pages, block_table, lengths, out=own, scale=scale, soft_cap=soft_cap,
        sinks=sinks, k_scale=k_scale, v_scale=v_scale, lse=sums, tables_ready=tables_ready,
        space=space,
    )  # fmt: skip
    paged_prefill(
        q.flatten(0, 1), k_pages, v_pages, prefix_table, prefix_lengths, prefix_starts,
        out.view(-1, *out.shape[2:]), scale=scale, longest_query=most_sharing * q.shape[1],
        longest=longest_prefix, soft_cap=soft_cap, k_scale=k_scale, v_scale=v_scale,
        lse=None if lse is None else lse.view(-1, lse.shape[-1]), causal=False,
        part=own.flatten(0, 1), part_lse=sums.flatten(0, 1),
        work=None if work is None else work._replace(after_part=True),
    )  # fmt: skip


def prefix_work(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    prefix_table: torch.Tensor,
    prefix_lengths: torch.Tensor,
    prefix_starts: torch.Tensor,
    *,
    most_sharing: int,
    longest_prefix: int,
) -> Work:
    """The division of the prefixes among programs, made once for all layers of a step.

    Arguments are those of `shared_prefix_decode`. Waits for nothing.
    """
    _check(q, prefix_table, prefix_lengths, prefix_starts)
    return prefill_work(
        q.flatten(0, 1), k_pages, v_pages, prefix_table, prefix_lengths, prefix_starts,
        longest_query=most_sharing * q.shape[1], longest=longest_prefix, causal=False,
    )  # fmt: skip


def _check(
    q: torch.Tensor,
    prefix_table: torch.Tensor,
    prefix_lengths: torch.Tensor,
    prefix_starts: torch.Tensor,
) -> None:
    """Check arguments with other names than in the kernels."""
    shape_of("q", q, (None, None, None, None))
    shape_of("prefix_lengths", prefix_lengths, (None,))
    count = len(prefix_lengths)
    shape_of("prefix_table", prefix_table, (count, None))
    shape_of("prefix_starts", prefix_starts, (count + 1,))
    named = {"table": prefix_table, "lengths": prefix_lengths, "starts": prefix_starts}
    for name, tensor in named.items():
        dtype_of(f"prefix_{name}", tensor, (torch.int32,))
