"""Reference of paged prefill attention in plain torch, request by request."""

from __future__ import annotations

import torch

from kvproof.kernels.paged_prefill.arguments import MOST_TREE

SCORES = 1 << 27
"""Scores held at once; all scores of a long chunk over a long context exceed the memory."""


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    window: int,
    soft_cap: float,
    sinks: torch.Tensor | None,
    causal: bool = True,
    tree: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One request: the last len(q) of len(k) tokens attend to themselves and all before them.

    Not `causal`: they attend to all of k. `tree`: as in the public function.
    `q` is [new, heads, dim]; `k` and `v` are [length, kv heads, dim] of the same dtype, in which
    everything is computed. Head h reads KV head h // (heads / kv heads). Returned with the natural
    logarithms of the sums of the exponentials of scores, [new, heads].
    """
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    out, sums = torch.empty_like(q), q.new_empty(q.shape[:2])
    rows = max(1, SCORES // (q.shape[1] * max(1, len(k))))
    for first in range(0, len(q), rows):
        piece = q[first : first + rows]
        scores = torch.einsum("qhd,khd->hqk", piece, k) * scale
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        key = torch.arange(len(k), device=q.device)
        own = (len(k) - len(q) + first + torch.arange(len(piece), device=q.device))[:, None]
        hidden = (key > own) & causal | (key <= own - (window or len(k) + len(q)))
        if tree is not None:
            hidden |= _beside(tree[first : first + rows], key - (len(k) - len(q)))
        scores = scores.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            column = sinks.to(scores.dtype)[:, None, None].expand(-1, len(piece), 1)
            scores = torch.cat((scores, column), -1)
        unseen = scores.isneginf().all(-1, keepdim=True)
        weights = torch.softmax(scores, -1).masked_fill(unseen, 0)[..., : len(k)]
        out[first : first + rows] = torch.einsum("hqk,khd->qhd", weights, v)
        sums[first : first + rows] = torch.logsumexp(scores, -1).T
    return out, sums


def _beside(tree: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """Whether a token is on another branch than a query, by its number among the new ones."""
    bit = (tree[:, None] >> number.clamp(0, MOST_TREE - 1)) & 1
    return (number >= 0) & (number < MOST_TREE) & (bit == 0)


def dense(
    pages: torch.Tensor,
    scale: torch.Tensor | None,
    table: torch.Tensor,
    length: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The first `length` tokens of a request, [length, kv heads, dim], with their scales applied.

    `scale` is [kv heads] (FP8), [pages, page, kv heads] (INT8) or nothing.
    """
    ids = table[: -(-length // pages.shape[1])].long()
    rows = pages[ids].flatten(0, 1)[:length].to(dtype)
    if scale is None:
        return rows
    scales = scale if scale.dim() == 1 else scale[ids].flatten(0, 1)[:length]
    return rows * scales.to(dtype)[..., None]


def paged_prefill(
    *,
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    query_starts: torch.Tensor,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    causal: bool = True,
    tree: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention of all new tokens, [tokens, heads, dim] of `dtype`, and as `attend` its sums.

    Padding rows are zero.
    """
    out = torch.zeros(q.shape, dtype=dtype, device=q.device)
    sums = out.new_zeros(q.shape[:2])
    starts = query_starts.tolist()
    for request, length in enumerate(lengths.tolist()):
        rows = slice(starts[request], starts[request + 1])
        if rows.start < rows.stop:
            out[rows], sums[rows] = attend(
                q[rows].to(dtype),
                dense(k_pages, k_scale, block_table[request], length, dtype),
                dense(v_pages, v_scale, block_table[request], length, dtype),
                scale=scale, window=window, soft_cap=soft_cap, sinks=sinks, causal=causal,
                tree=None if tree is None else tree[rows],
            )  # fmt: skip
    return out, sums


def with_part(
    found: torch.Tensor, sums: torch.Tensor, part: torch.Tensor, part_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add attention over another part of the context; an empty part is not read."""
    whole = torch.logaddexp(sums, part_lse)
    mine, theirs = (
        torch.where(each > float("-inf"), torch.exp(each - whole), 0)[..., None]
        for each in (sums, part_lse)
    )
    return found * mine + torch.where(theirs > 0, part, 0) * theirs, whole
