"""Reference of filled pages."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Place(NamedTuple):
    """Target of a token."""

    token: int
    page: int
    offset: int


def places(arguments: dict[str, Any], *, page_size: int) -> list[Place]:
    """Targets of all tokens that are written."""
    if arguments["slots"] is not None:
        slots = arguments["slots"].tolist()
        return [Place(i, *divmod(slot, page_size)) for i, slot in enumerate(slots) if slot >= 0]
    table, starts = arguments["block_table"].tolist(), arguments["starts"].tolist()
    bounds = arguments["query_starts"].tolist()
    found = []
    for request, start in enumerate(starts):
        for i, token in enumerate(range(bounds[request], bounds[request + 1])):
            entry, offset = divmod(start + i, page_size)
            if table[request][entry] >= 0:
                found.append(Place(token, table[request][entry], offset))
    return found


def fill(
    rows: torch.Tensor,
    pages: torch.Tensor,
    *,
    places: list[Place],
    layout: str,
    scale: torch.Tensor | None,
    scales: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Copies of the pages and scales, with the rows written to their targets."""
    pages = pages.clone()
    scales = None if scales is None else scales.clone()
    token, page, offset = torch.tensor(places, device=rows.device).long().view(-1, 3).unbind(1)
    values, factors = stored(rows[token], scale, quantise=scales is not None, dtype=pages.dtype)
    by_position = pages if layout == "NHD" else pages.transpose(1, 2)
    same = by_position.view(torch.uint8) if values.element_size() == 1 else by_position
    same[page, offset] = values.view(torch.uint8) if values.element_size() == 1 else values
    if scales is not None:
        scales[page, offset] = factors
    return pages, scales


def stored(
    rows: torch.Tensor, scale: torch.Tensor | None, *, quantise: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Stored form of rows [tokens, heads, dim], and the scales [tokens, heads]."""
    if scale is not None:
        inverse = (1 / scale)[None, :, None]
        return (rows.float() * inverse).clamp(-448, 448).to(torch.float8_e4m3fn), None
    if not quantise:
        return rows, None
    if dtype == torch.uint8:
        return _four_bits(rows.float())
    largest = rows.float().abs().amax(-1)
    most = torch.full_like(largest, 127)  # divided by a number, a GPU would multiply
    factor = torch.where(largest > 0, most / largest, 0.0)
    return torch.round(rows.float() * factor[..., None]).to(torch.int8), largest / most


def _four_bits(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with_zero = torch.nn.functional.pad(rows, (0, 1))
    least, most = with_zero.aminmax(dim=-1)
    steps = torch.full_like(least, 15)  # likewise
    step = ((most - least) / steps).clamp_min(1e-6)
    zero = torch.floor(-least / step + 0.5)
    levels = (rows * step.reciprocal()[..., None] + zero[..., None]).clamp(0, 15)
    codes = torch.floor(levels + 0.5).int()
    factors = ((step.view(torch.int32) >> 4 << 4) + zero.int()).view(torch.float32)
    return (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8), factors
