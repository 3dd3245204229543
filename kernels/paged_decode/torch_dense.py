"""What one writes with plain torch: gather the pages, then scaled dot product attention."""

from __future__ import annotations

import torch

from kvproof.kernels.spec import Case

_ROOM = 4 << 30
"""Bytes: 64 requests of 32,768 latent tokens would take 64 GiB with 16 heads."""


def why_not_dense(case: Case) -> str:
    """Why a cell cannot be run this way."""
    if case["kv_dtype"] in ("fp8", "int8", "int4"):
        return "scaled_dot_product_attention takes no scaled cache"
    if case["soft_cap"]:
        return "scaled_dot_product_attention has no soft cap"
    return "scaled_dot_product_attention has no sinks" if case["sinks"] else ""


def dense_decode(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor | None,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    out: torch.Tensor,
    scale: float,
    window: int = 0,
    **_: object,
) -> None:
    """Attend over dense copies as long as the block table; rows that see nothing are zero.

    As many requests at a time as leave the copies of keys and values, one for every head of a
    query, within 4 GiB; at least one.
    """
    tokens, row = block_table.shape[1] * k_pages.shape[1], q.shape[3] + out.shape[3]
    count = max(1, _ROOM // max(1, tokens * row * q.shape[2] * q.itemsize))
    for first in range(0, len(q), count):
        some = slice(first, first + count)
        out[some] = _attended(
            q[some], k_pages, v_pages, block_table[some], lengths[some],
            value_dim=out.shape[-1], scale=scale, window=window,
        )  # fmt: skip


def _attended(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor | None,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    value_dim: int,
    scale: float,
    window: int,
) -> torch.Tensor:
    page = k_pages.shape[1]
    token = torch.arange(block_table.shape[1] * page, device=q.device)
    cached = token < lengths[:, None]
    ids = torch.where(cached[:, ::page], block_table, 0)
    keys = _dense(k_pages, ids, cached)
    values = keys[..., :value_dim] if v_pages is None else _dense(v_pages, ids, cached)
    position = lengths[:, None] - q.shape[1] + torch.arange(q.shape[1], device=q.device)
    seen = cached[:, None] & (token <= position[..., None])
    if window:
        seen = seen & (token > position[..., None] - window)
    found = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2),
        attn_mask=seen[:, None], scale=scale, enable_gqa=True,
    )  # fmt: skip
    return found.transpose(1, 2).masked_fill(~seen.any(-1)[..., None, None], 0)


def _dense(pages: torch.Tensor, ids: torch.Tensor, cached: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, kv_heads, dim]; zero where nothing is cached."""
    tokens = pages[ids.long()].flatten(1, 2)
    return tokens.masked_fill(~cached[..., None, None], 0)
