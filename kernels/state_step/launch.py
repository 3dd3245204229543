"""The public functions: checked arguments, then one launch; plain torch without Triton."""

from __future__ import annotations

import torch

from kvproof.kernels.backend import (
    interpreted,
    multiprocessors,
    power_above,
    power_below,
    runs_triton,
    start_options,
    starts_ahead,
)
from kvproof.kernels.interpreter import let_tensors_bound_loops
from kvproof.kernels.state_step.step import Step
from kvproof.kernels.state_step.torch_reference import stepped

PROGRAMS = 4
"""Fewest programs per multiprocessor, before a program takes more of a state."""

TILE_BYTES = 4096
"""Most bytes of a state in a program: many small programs keep more loads in flight."""

WARPS = 1


def gated_delta_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decays: torch.Tensor,
    strengths: torch.Tensor,
    states: torch.Tensor,
    *,
    sources: torch.Tensor,
    rows: torch.Tensor,
    query_starts: torch.Tensor | None = None,
    out: torch.Tensor,
    scale: float,
    normalised: bool = False,
    check_contents: bool = False,
) -> None:
    """Gated delta rule over the new tokens of each request, in one launch.

    For each token: state *= exp(decay); state += strength * (v - state @ k) outer k; out = state @
    q * scale. It is computed in float32.

    Args:
        q: [tokens, heads, key size] bfloat16, float16 or float32, as all numbers here; of every
            tensor all but the first dimension is contiguous. Key sizes are 1 to 256.
        k: Like `q`.
        v: [tokens, value heads, value size]; value heads are a multiple of heads.
        decays: [tokens, value heads], natural logarithms.
        strengths: [tokens, value heads], beta.
        states: [rows, value heads, value size, key size], written; rows may lie apart.
        sources: [requests] int32 or int64: the row that holds a request's state before the step.
            Below 1: padding, whose outputs are zeros; row 0 is never read.
        rows: [requests, width] int32 or int64: the row that gets the state after a request's
            token i is `rows[request, i]`; none does where it is below 1 or i >= width. The next
            step reads the row of the last accepted draft: this is how drafts are rolled back.
        query_starts: [requests + 1] int32 or int64: request i owns the tokens from query_starts[i]
            to query_starts[i + 1] - 1; those from query_starts[requests] on are padding, of which
            nothing is read or written.
        out: Like `v`, written.
        scale: Factor of the queries.
        normalised: Queries and keys are divided by their norms first.
        check_contents: Also refuse rows that do not exist, that two requests share, and
            `query_starts` that fall. Waits for the device; unchecked, such rows race.

    Raises:
        ArgumentError: An argument does not fit the others.

    """
    _take(
        Step(
            q=q, k=k, v=v, decays=decays, strengths=strengths, states=states, sources=sources,
            rows=rows, query_starts=query_starts, out=out, delta=True, scale=scale,
            normalised=normalised,
        ),
        check_contents=check_contents,
    )  # fmt: skip


def mamba2_step(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    states: torch.Tensor,
    *,
    sources: torch.Tensor,
    rows: torch.Tensor,
    query_starts: torch.Tensor | None = None,
    out: torch.Tensor,
    dt_bias: torch.Tensor | None = None,
    skips: torch.Tensor | None = None,
    check_contents: bool = False,
) -> None:
    """Mamba2's recurrence over the new tokens of each request, in one launch.

    For each token: time = softplus(dt + dt_bias); state = exp(time * a) * state + time * x outer
    b; out = state @ c + skips * x. It is computed in float32.

    Args:
        x: [tokens, heads, head size]; dtypes and strides are as in `gated_delta_step`.
        dt: [tokens, heads], before the softplus.
        a: [heads], negative.
        b: [tokens, groups, state size]; heads are a multiple of groups. State sizes are 1 to 256.
        c: Like `b`.
        states: [rows, heads, head size, state size], written; rows may lie apart.
        sources: As in `gated_delta_step`, like the arguments that are not here.
        rows: Likewise.
        query_starts: Likewise.
        out: Like `x`, written.
        dt_bias: [heads].
        skips: [heads], D.
        check_contents: As in `gated_delta_step`.

    Raises:
        ArgumentError: An argument does not fit the others.

    """
    _take(
        Step(
            q=c, k=b, v=x, decays=a, strengths=dt, states=states, sources=sources, rows=rows,
            query_starts=query_starts, out=out, delta=False, bias=dt_bias, skips=skips,
        ),
        check_contents=check_contents,
    )  # fmt: skip


def _take(step: Step, *, check_contents: bool) -> None:
    step.check()
    if check_contents:
        step.check_values()
    if not step.out.numel() or not len(step.sources):
        return
    if runs_triton(step.out):
        _launch(step)
    else:
        stepped(step, longest=step.longest())


def _launch(step: Step) -> None:
    from kvproof.kernels.state_step.triton_kernel import take_step

    if interpreted():
        let_tensors_bound_loops()
    heads, value_heads = step.heads
    _, _, value, key = step.states.shape
    columns, ahead = power_above(key), starts_ahead(step.out.device)
    states = len(step.sources) * value_heads
    fitting = TILE_BYTES // (columns * step.states.itemsize)
    rows = _rows(states * value, min(fitting, power_above(value)), step.out.device)
    decay_step = step.decays.stride(0) if step.delta else 0
    take_step[(states * -(-value // rows),)](
        step.q, step.k, step.v, step.decays, step.strengths, step.states, step.out,
        step.sources, step.rows, step.query_starts, step.bias, step.skips,
        step.scale, step.rows.shape[1], step.q.stride(0), step.k.stride(0), step.v.stride(0),
        decay_step, step.strengths.stride(0), step.states.stride(0), step.out.stride(0),
        HEADS=heads, VALUE_HEADS=value_heads, KEY=key, VALUE=value, COLUMNS=columns, ROWS=rows,
        DELTA=step.delta, NORMALISED=step.normalised, GPU=not interpreted(), DEPENDENT=ahead,
        num_warps=WARPS, **start_options(ahead=ahead),
    )  # fmt: skip


def _rows(all_rows: int, most: int, device: torch.device) -> int:
    """Rows of a state in a program: few requests are spread over all multiprocessors."""
    spread = all_rows // (PROGRAMS * multiprocessors(device))
    return power_below(max(1, min(spread, most)))
