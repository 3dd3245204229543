"""Decode steps of recurrent layers in plain torch, all requests at once, token by token."""

from __future__ import annotations

import torch

from kvproof.kernels.state_step.step import Step

EPSILON = 1e-6
"""Added to the sum of squares, so that a vector of zeros can be normalised."""


def stepped(step: Step, *, longest: int, compute: torch.dtype = torch.float32) -> None:
    """Take the step in place; `longest` is the number of tokens of the longest request.

    Computed in `compute`; a state stays in it from token to token, and is rounded where it is kept.
    """
    real, starts = step.sources > 0, step.starts()
    lengths = starts.diff()
    owned = torch.arange(len(step.out), device=step.out.device) < starts[-1]
    step.out.masked_fill_(owned[:, None, None], 0)
    state = step.states[step.sources.clamp_min(0).long()].to(compute)
    for number in range(longest):
        live = torch.nonzero(real & (lengths > number)).squeeze(1)
        token = (starts[:-1][live] + number).long()
        state[live], step.out[token] = _token(step, token, state[live])
        if number < step.rows.shape[1]:
            kept = live[step.rows[live, number] > 0]
            step.states[step.rows[kept, number].long()] = state[kept].to(step.states.dtype)


def _token(
    step: Step, token: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """State after one token of some requests, and the output of that token."""
    heads, value_heads = step.heads
    q, k = (_wide(step, each[token], state.dtype) for each in (step.q, step.k))
    q, k = (each.repeat_interleave(value_heads // heads, 1) for each in (q * step.scale, k))
    v, strength = step.v[token].to(state.dtype), step.strengths[token].to(state.dtype)
    if step.delta:
        decayed = state * step.decays[token].to(state.dtype).exp()[..., None, None]
        update = strength[..., None] * (v - torch.einsum("nhvk,nhk->nhv", decayed, k))
    else:
        time = torch.nn.functional.softplus(
            strength if step.bias is None else strength + step.bias.to(state.dtype)
        )
        decayed = state * (time * step.decays.to(state.dtype)).exp()[..., None, None]
        update = time[..., None] * v
    state = decayed + update[..., None] * k[:, :, None]
    out = torch.einsum("nhvk,nhk->nhv", state, q)
    if step.skips is not None:
        out = out + step.skips.to(state.dtype)[:, None] * v
    return state, out.to(step.out.dtype)


def _wide(step: Step, vectors: torch.Tensor, compute: torch.dtype) -> torch.Tensor:
    vectors = vectors.to(compute)
    if not step.normalised:
        return vectors
    return vectors / (vectors.square().sum(-1, keepdim=True) + EPSILON).sqrt()
