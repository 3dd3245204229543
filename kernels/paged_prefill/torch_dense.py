"""Plain torch: gather the context, then use its fused attention."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvproof.kernels.paged_prefill.torch_reference import dense
from kvproof.kernels.spec import Arguments, Case, Launch


def why_not_dense(case: Case) -> str:
    """Why torch's fused attention does not support a cell, or None."""
    if case["soft_cap"]:
        return "scaled_dot_product_attention has no soft cap"
    if case["sinks"]:
        return "scaled_dot_product_attention has no sinks"
    return ""


def prepare_dense(_: Case, arguments: Arguments) -> Launch:
    """Compute lengths and masks in advance, as an engine does once a step."""
    starts = arguments["query_starts"].tolist()
    requests = [
        (request, slice(start, end), length, _mask(arguments, end - start, length))
        for request, (start, end, length) in enumerate(
            zip(starts, starts[1:], arguments["lengths"].tolist(), strict=False)
        )
        if end > start
    ]

    def launch() -> None:
        for request, rows, length, mask in requests:
            _attend(arguments, request, rows, length, mask)

    return launch


def _mask(arguments: Arguments, new: int, length: int) -> torch.Tensor:
    device = arguments["q"].device
    key = torch.arange(length, device=device)
    own = torch.arange(length - new, length, device=device)[:, None]
    return (key <= own) & (key > own - (arguments["window"] or length))


def _attend(
    arguments: Arguments, request: int, rows: slice, length: int, mask: torch.Tensor
) -> None:
    q, table = arguments["q"], arguments["block_table"][request]
    if arguments["k_scale"] is not None:
        q = q.float()  # scaled keys rounded to bfloat16 would double the error
    k, v = (
        dense(arguments[f"{name}_pages"], arguments[f"{name}_scale"], table, length, q.dtype)
        for name in "kv"
    )
    # On a GPU torch's kernels misread rows whose distance is no multiple of 16 bytes.
    queries = q[rows].transpose(0, 1).contiguous()
    arguments["out"][rows] = scaled_dot_product_attention(
        queries[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None],
        attn_mask=mask, scale=arguments["scale"], enable_gqa=True,
    )[0].transpose(0, 1)  # fmt: skip
