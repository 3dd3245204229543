"""Many query tokens a request: the kernel of prefill reads keys once for 128 query rows."""

from __future__ import annotations

from typing import Any

import torch

from kvproof.kernels.paged_decode import rules
from kvproof.kernels.paged_prefill import launch as prefill
from kvproof.kernels.paged_prefill import plans
from kvproof.kernels.paged_prefill.arguments import MOST_DIM, Inputs


def takes(tensors: dict[str, Any], shape: rules.Shape) -> bool:
    """Whether the other kernel can do it, and reads less: this one reads keys for 32 rows."""
    q, out, values = tensors["q"], tensors["out"], tensors["v_pages"]
    return (
        shape.rows > rules.MOST_ROWS
        and values is not None
        and values.shape == tensors["k_pages"].shape
        and shape.head_dim <= MOST_DIM
        and all(_one_after_the_other(tensor) for tensor in (q, out, tensors["lse"]))
        and plans.copies_pages(_inputs(tensors, 1.0, 0, 0.0))
    )


def launch(tensors: dict[str, Any], numbers: dict[str, Any]) -> None:
    """Attend; arguments are those of `paged_decode` that `takes` has found to fit."""
    q, lse = tensors["q"], tensors["lse"]
    given = _inputs(tensors, numbers["scale"], numbers["window"], numbers["soft_cap"])
    longest = tensors["block_table"].shape[1] * given.page_size
    prefill.attend_many(
        given, tensors["out"].flatten(0, 1), None if lse is None else lse.flatten(0, 1),
        longest_query=q.shape[1], longest=max(q.shape[1], longest),
    )  # fmt: skip


def _one_after_the_other(tensor: torch.Tensor | None) -> bool:
    """Whether the tokens of a request are followed by those of the next."""
    return tensor is None or tensor.stride(0) == tensor.shape[1] * tensor.stride(1)


def _inputs(tensors: dict[str, Any], scale: float, window: int, soft_cap: float) -> Inputs:
    return Inputs(
        tensors["q"].flatten(0, 1), tensors["k_pages"], tensors["v_pages"], tensors["block_table"],
        tensors["lengths"], None, scale, window, soft_cap, tensors["sinks"],
        tensors["k_scale"], tensors["v_scale"],
    )  # fmt: skip
