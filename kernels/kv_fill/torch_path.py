"""KV fill in plain torch: for any device, and for comparison."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvproof.kernels.kv_fill.pages import FLOAT8, LEAST, LEAST_STEP, Pages

FLOAT8_MOST = 448.0
INT8_MOST = 127.0
INT4_MOST = 15.0


class Targets(NamedTuple):
    """Tokens to write (None: all), and the target of each."""

    tokens: torch.Tensor | None
    page: torch.Tensor
    offset: torch.Tensor


def targets(slots: torch.Tensor, page_size: int) -> Targets:
    """Targets of slots; waits for the device."""
    slots = slots.long()
    wanted = slots >= 0
    if bool(wanted.all()):
        return Targets(None, slots // page_size, slots % page_size)
    tokens = torch.nonzero(wanted).squeeze(1)
    return Targets(tokens, slots[tokens] // page_size, slots[tokens] % page_size)


def fill(k: torch.Tensor, v: torch.Tensor | None, pages: Pages, to: Targets) -> None:
    """Write the rows to their targets."""
    where = (to.page, to.offset)
    _put(_chosen(k, to), pages.k, where, pages.k_scale, pages.k_scales)
    if v is not None and pages.v is not None:
        _put(_chosen(v, to), pages.v, where, pages.v_scale, pages.v_scales)


def _chosen(rows: torch.Tensor, to: Targets) -> torch.Tensor:
    return rows if to.tokens is None else rows[to.tokens]


def _put(
    rows: torch.Tensor,
    pages: torch.Tensor,
    where: tuple[torch.Tensor, torch.Tensor],
    scale: torch.Tensor | None,
    scales: torch.Tensor | None,
) -> None:
    if scale is not None:
        rows = (rows.float() * (1 / scale)[:, None]).clamp(-FLOAT8_MOST, FLOAT8_MOST).to(FLOAT8)
    if scales is not None:
        quantise = _int4 if pages.dtype == torch.uint8 else _int8
        rows, scales[where] = quantise(rows.float())
    if rows.dtype.itemsize == 1:
        pages, rows = pages.view(torch.uint8), rows.view(torch.uint8)
    pages[where] = rows


def _int4(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes of rows [tokens, heads, dim], and scales [tokens, heads] with their zero points."""
    low, high = rows.amin(-1).clamp_max(0.0), rows.amax(-1).clamp_min(0.0)
    scale = ((high - low) / torch.full_like(low, INT4_MOST)).clamp_min(LEAST_STEP)
    zero = (-low / scale + 0.5).floor()
    levels = rows * (torch.ones_like(scale) / scale)[..., None] + zero[..., None]
    even, odd = (
        (levels.clamp(0, INT4_MOST) + 0.5).floor().to(torch.uint8).unflatten(-1, (-1, 2)).unbind(-1)
    )
    words = scale.view(torch.int32) & -16 | zero.int()
    return even | odd << 4, words.view(torch.float32)


def _int8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers of rows [tokens, heads, dim] and their scales [tokens, heads]."""
    largest = rows.abs().amax(-1)
    largest = largest.masked_fill(largest < LEAST, 0.0)
    most = torch.full_like(largest, INT8_MOST)  # a GPU would not divide by a number, but multiply
    factor = most / largest.masked_fill(largest == 0, 1.0)
    return (rows * factor[..., None]).round().to(torch.int8), largest / most
