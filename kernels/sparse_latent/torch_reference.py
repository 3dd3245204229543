"""Sparse latent attention in plain torch, some query tokens at a time."""

from __future__ import annotations

import math

import torch

from kvproof.kernels.sparse_latent.rows import VALUES, columns_of

TOKENS = 16
"""Query tokens whose chosen rows are held at once."""


def sparse_latent_torch(
    q: torch.Tensor,
    pages: torch.Tensor,
    indices: torch.Tensor,
    *,
    out: torch.Tensor,
    scale: float,
    sinks: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    compute: torch.dtype = torch.float32,
) -> None:
    """Attend q [tokens, heads, 576] into out, and lse if given; every product and sum in `compute`.

    Shapes are those of `sparse_latent`.
    """
    for start in range(0, len(q), TOKENS):
        some = slice(start, start + TOKENS)
        found, sums = _attended(q[some], pages, indices[some].long(), scale, sinks, compute)
        out[some] = found.to(out.dtype)
        if lse is not None:
            lse[some] = sums.to(lse.dtype)


def _attended(
    q: torch.Tensor,
    pages: torch.Tensor,
    indices: torch.Tensor,
    scale: float,
    sinks: torch.Tensor | None,
    compute: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The answer for some query tokens, [tokens, heads, 512], and its logarithms."""
    there = indices >= 0
    slots = indices.clamp_min(0)
    rows = columns_of(pages[slots // pages.shape[1], slots % pages.shape[1]], dtype=compute)
    rows = rows.masked_fill(~there[..., None], 0)
    logits = torch.einsum("thd,tnd->thn", q.to(compute), rows) * scale
    logits = logits.masked_fill(~there[:, None], -math.inf)
    if sinks is not None:
        sink = sinks.to(compute)[None, :, None].expand(*logits.shape[:2], 1)
        logits = torch.cat([logits, sink], dim=2)
    weights = torch.softmax(logits, dim=2)[..., : indices.shape[1]]
    # A query token without a chosen one has no weights, not NaN.
    weights = weights.masked_fill(~there[:, None], 0)
    found = torch.einsum("thn,tnd->thd", weights, rows[..., :VALUES])
    return found, torch.logsumexp(logits, dim=2)
