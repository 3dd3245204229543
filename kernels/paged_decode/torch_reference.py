"""Paged decode attention in plain torch: one request, one KV head at a time."""

from __future__ import annotations

import math

import torch

from kvproof.kernels.page_formats.numbers import CODECS, zero_points


def paged_decode_torch(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor | None,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    out: torch.Tensor,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    compute: torch.dtype = torch.float32,
) -> None:
    """Attend q [batch, q_tokens, heads, dim] into out, and lse if given.

    Every product and sum is in `compute`. Shapes are those of `paged_decode`. Waits
    for the device, to read the lengths.
    """
    group = q.shape[2] // k_pages.shape[2]
    for request, length in enumerate(lengths.tolist()):
        keys = _tokens(k_pages, block_table[request], length, k_scale, compute)
        values = keys[..., : out.shape[-1]]
        if v_pages is not None:
            values = _tokens(v_pages, block_table[request], length, v_scale, compute)
        seen = _seen(length, q.shape[1], window, q.device)
        for head in range(q.shape[2]):
            sink = None if sinks is None else sinks[head].to(compute)
            logits = q[request, :, head].to(compute) @ keys[:, head // group].T * scale
            logits = _capped(logits, soft_cap).masked_fill(~seen, -math.inf)
            if sink is not None:
                logits = torch.cat([logits, sink.expand(len(logits), 1)], dim=1)
            if lse is not None:
                lse[request, :, head] = torch.logsumexp(logits, dim=1).to(lse.dtype)
            weights = _weights(logits, seen)
            out[request, :, head] = (weights @ values[:, head // group]).to(out.dtype)


def _tokens(
    pages: torch.Tensor,
    ids: torch.Tensor,
    length: int,
    scale: torch.Tensor | None,
    compute: torch.dtype,
) -> torch.Tensor:
    """The first `length` tokens of a request, [length, kv_heads, dim], with their scale."""
    page = pages.shape[1]
    used = ids[: -(-length // page)].long()
    # Bytes first: not every device can index float8.
    raw = pages.view(torch.uint8) if pages.dtype.itemsize == 1 else pages
    tokens = raw[used].view(pages.dtype).flatten(0, 1)[:length]
    if pages.dtype == torch.uint8 and scale is not None:
        scales, zeros = zero_points(scale[used].flatten(0, 1)[:length])
        numbers = CODECS["uint4"].decode(tokens).to(compute) - zeros[..., None].to(compute)
        return numbers * scales.to(compute)[..., None]
    tokens = tokens.to(compute)
    if scale is None:
        return tokens
    if scale.dim() == 1:
        return tokens * scale.to(compute)[:, None]
    return tokens * scale[used].flatten(0, 1)[:length].to(compute)[..., None]


def _seen(length: int, q_tokens: int, window: int, device: torch.device) -> torch.Tensor:
    """Which tokens each of the last q_tokens positions sees, [q_tokens, length]."""
    position = torch.arange(length - q_tokens, length, device=device)[:, None]
    token = torch.arange(length, device=device)
    seen = token <= position
    return seen & (token > position - window) if window else seen


def _capped(logits: torch.Tensor, soft_cap: float) -> torch.Tensor:
    return torch.tanh(logits / soft_cap) * soft_cap if soft_cap else logits


def _weights(logits: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Weights over the tokens seen; a row that sees nothing has none."""
    weights = torch.softmax(logits, dim=1) if logits.shape[1] else logits
    return weights[:, : seen.shape[1]].masked_fill(~seen, 0)
