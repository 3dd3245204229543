"""Scattered pages of attention sweeps, with NaN in everything that no kernel may read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvproof.kernels.source import Source, poison
from kvproof.kernels.spec import Case

SPARE_PAGES = 3
"""Pages that no request owns."""

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
    "int4": torch.uint8,
}


def filled(table: torch.Tensor, order: torch.Tensor, needs: Sequence[int]) -> torch.Tensor:
    """Give each request its pages, in the scattered order; the rest of its row is padding."""
    start = 0
    for request, need in enumerate(needs):
        table[request, :need] = order[start : start + need]
        start += need
    return table


def pool_of(case: Case, source: Source, pages: int, dim: int) -> torch.Tensor:
    """Keys or values, [pages, page, kv_heads, dim]."""
    shape = (pages, int(case["page"]), int(case["kv_heads"]), dim)
    dtype = DTYPES[str(case["kv_dtype"])]
    if dtype == torch.uint8:
        return source.bytes((*shape[:3], dim // 2))
    if dtype == torch.int8:
        return source.bytes(shape).view(torch.int8)
    return source.normal(shape, dtype)


def scale_of(case: Case, source: Source, pool: torch.Tensor) -> torch.Tensor | None:
    """Scales such that scaled values are about as large as normal ones."""
    if pool.dtype == torch.int8:
        return source.normal(pool.shape[:3], torch.float32, scale=0.003).abs_().add_(0.012)
    if pool.dtype == torch.uint8:
        scale = source.normal(pool.shape[:3], torch.float32, scale=0.02).abs_().add_(0.14)
        zeros = source.integers(pool.shape[:3], low=0, high=16)
        return scale.view(torch.int32).bitwise_and_(-16).bitwise_or_(zeros).view(torch.float32)
    if pool.dtype == torch.float8_e4m3fn:
        scale = source.normal((pool.shape[2],), torch.float32, scale=0.1).add_(1)
        if case.get("scales") == "tensor":
            # A power of two: scaled keys are exact in bfloat16, in which engines have them.
            scale.fill_(2.0 ** int(source.integers((1,), low=-1, high=2)))
        return scale
    return None


def poison_unowned(tensor: torch.Tensor, pages: torch.Tensor) -> None:
    """Poison pages that belong to no request."""
    rows, bad = _rows(tensor)
    rows[pages.long()] = bad


def poison_leftovers(
    tensor: torch.Tensor, order: torch.Tensor, lengths: Sequence[int], needs: Sequence[int]
) -> None:
    """Poison the slots after each request's last token in its last page."""
    rows, bad = _rows(tensor)
    page, start = tensor.shape[1], 0
    for length, need in zip(lengths, needs, strict=True):
        start += need
        if length % page:
            rows[int(order[start - 1]), length % page :] = bad


def _rows(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensor, and a poisoned token for it; as bytes, for not every device indexes float8."""
    bad = poison(torch.empty(tensor.shape[2:], dtype=tensor.dtype, device=tensor.device))
    if tensor.itemsize > 1:
        return tensor, bad
    return tensor.view(torch.uint8), bad.view(torch.uint8)
