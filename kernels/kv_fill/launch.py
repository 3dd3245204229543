"""Checks arguments, chooses tiles and launches; plain torch where Triton does not run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
from kvproof.kernels.checks import same_device
from kvproof.kernels.kv_fill import torch_path
from kvproof.kernels.kv_fill.pages import LEAST, LEAST_STEP, WIDEST, Layout, Pages, checked
from kvproof.kernels.kv_fill.where import Slots, Table, in_range
from kvproof.kernels.kv_fill.where import checked as where_checked

TILE_BYTES = 4 << 10
"""Most bytes of K and of V per program: many small programs keep more loads in flight."""

PROGRAMS = 4
"""Fewest programs per multiprocessor, before a program takes more rows."""

NARROWEST = 32
"""Fewest elements of a piece, if a token is not moved head by head."""

REQUESTS = 256
"""Requests that a program compares with its tokens at once."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Tiling: rows per program, its warps, and whether it may start early."""

    rows: int
    warps: int
    ahead: bool


def kv_fill(
    k: torch.Tensor,
    v: torch.Tensor | None,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor | None,
    *,
    slots: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    starts: torch.Tensor | None = None,
    query_starts: torch.Tensor | None = None,
    layout: Layout = "NHD",
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
    check_ids: bool = False,
    tile: Tile | None = None,
) -> None:
    """Write the new tokens of a ragged batch into its pages, in one launch.

    `slots` hold the targets, or `block_table`, `starts` and `query_starts`.

    Args:
        k: [tokens, heads, dim]; may be part of a larger tensor, dim contiguous.
        v: Like `k`, or nothing for a cache of one latent row a token.
        k_pages: [pages, page, heads, dim] (NHD) or [pages, heads, page, dim] (HND).
        v_pages: Like `k_pages`, with the same strides.
        slots: [tokens] int32 or int64: page * page size + offset; a negative one skips its token.
        block_table: [batch, entries] int32: the page of each `page` positions of a request; where
            it is negative, tokens are skipped.
        starts: [batch] int32: position of a request's first new token.
        query_starts: [batch + 1] int32: request i owns the tokens from query_starts[i] to
            query_starts[i + 1] - 1; those from query_starts[batch] on are padding and skipped.
        layout: Order of heads and positions within a page.
        k_scale: [heads] float32, for pages of float8_e4m3fn: value * (1 / scale) is stored,
            rounded to nearest even, saturated at 448.
        v_scale: Like `k_scale`.
        k_scales: [pages, page, heads] float32, for pages of int8, written: max(abs(row)) / 127 of
            each token and head, and value * (127 / max(abs(row))) is stored, rounded to nearest
            even. A row of zeros has the scale 0. Values must be finite. For pages of uint8, INT4 of
            dim / 2 bytes (column 2i in the low nibble of byte i): the scale is a 15th of
            the range of a row and zero, at least 1e-6, with the zero point in its low 4 bits;
            value * (1 / scale) + zero point is stored, rounded half up. So does vLLM in
            `int4_per_token_head`, but that its range of a row of one sign is without zero.
        v_scales: Like `k_scales`.
        check_ids: Also check the values of the index tensors; waits for the device.
        tile: Another cut of the work than the rules choose.

    Raises:
        ArgumentError: An argument does not fit, with its value.

    """
    pages = checked(
        k, v, k_pages, v_pages, layout=layout,
        k_scale=k_scale, v_scale=v_scale, k_scales=k_scales, v_scales=v_scales,
    )  # fmt: skip
    where = where_checked(
        len(k), slots=slots, block_table=block_table, starts=starts, query_starts=query_starts
    )
    same_device(k=k, where=where[0])
    if check_ids:
        in_range(where, tokens=len(k), pages=len(pages.k), page_size=pages.page_size)
    if not len(k) or not len(where[0]):
        return
    if not runs_triton(k):
        slots = where.slots if isinstance(where, Slots) else where.slots(len(k), pages.page_size)
        torch_path.fill(k, v, pages, torch_path.targets(slots, pages.page_size))
    else:
        _launch(k, v, pages, where, tile)


def choose(rows: int, row_bytes: int, device: torch.device, *, searched: bool) -> Tile:
    """Tiling for this many rows: small problems are spread over all multiprocessors.

    With `searched`, programs look up the owners of their tokens; more warps slow this down.
    """
    spread = rows // (PROGRAMS * multiprocessors(device))
    fitting = max(1, TILE_BYTES // row_bytes)
    size = power_below(max(1, min(spread, fitting)))
    warps = power_below(max(1, min(4 if searched else 8, size * row_bytes // (32 * 16))))
    return Tile(rows=size, warps=warps, ahead=starts_ahead(device))


class _Rows(NamedTuple):
    """Rows of `dim` elements, `heads` of each token, with the strides in elements."""

    heads: int
    dim: int
    k_head: int
    v_head: int
    page_head: int


class _Strides(NamedTuple):
    """Strides in elements, in the pages and in the scales: page, position, head."""

    page_size: int
    pages: tuple[int, ...]
    scales: tuple[int, ...]


def _launch(
    k: torch.Tensor, v: torch.Tensor | None, pages: Pages, where: Slots | Table, tile: Tile | None
) -> None:
    # Triton is an optional dependency: without it only the torch path is there.
    from kvproof.kernels.kv_fill.triton_kernel import fill

    values = k if v is None else v
    row = _rows(k, values, pages)
    rows = len(k) * row.heads
    is_table = isinstance(where, Table)
    cut = tile or choose(rows, row.dim * k.element_size(), k.device, searched=is_table)
    ids, starts, query_starts = where if isinstance(where, Table) else (where.slots, None, None)
    batch = len(ids) if is_table else 0
    far = _strides(pages, flat=not is_table)
    fill[(-(-rows // cut.rows),)](
        k, v, pages.k, pages.v,
        pages.k_scale, pages.v_scale, pages.k_scales, pages.v_scales,
        ids, starts, query_starts,
        rows, batch, far.page_size, ids.stride(0),
        k.stride(0), row.k_head, values.stride(0), row.v_head,
        far.pages[0], far.pages[1], row.page_head, *far.scales,
        HEADS=row.heads, DIM=row.dim, ROWS=cut.rows, COLUMNS=power_above(row.dim),
        BATCH=min(REQUESTS, power_above(batch)) if batch else 0,
        VALUES=v is not None, QUANTISED=pages.quantised,
        DEPENDENT=cut.ahead, LEAST=LEAST, LEAST_STEP=LEAST_STEP, INTERPRETED=interpreted(),
        num_warps=cut.warps, enable_fp_fusion=False, **start_options(ahead=cut.ahead),
    )  # fmt: skip


def _rows(k: torch.Tensor, v: torch.Tensor, pages: Pages) -> _Rows:
    """Heads, or other pieces of a token: tiles are powers of two wide; wide ones are best."""
    _, heads, dim = k.shape
    steps = (k.stride(1), v.stride(1), pages.k.stride(2))
    together = heads == 1 or all(step == dim for step in steps)
    if pages.quantised or not together:
        return _Rows(heads, dim, *steps)
    width = heads * dim
    piece = min(width & -width, WIDEST)
    if piece < NARROWEST:
        return _Rows(heads, dim, *steps)
    return _Rows(width // piece, piece, piece, piece, piece)


def _strides(pages: Pages, *, flat: bool) -> _Strides:
    """The strides; with `flat`, equidistant slots become pages of one slot."""
    page_size = pages.page_size
    strides = pages.k.stride()[:3]
    scales = strides if pages.k_scales is None else pages.k_scales.stride()
    if flat and all(page == page_size * position for page, position, _ in (strides, scales)):
        one = ((position, position, head) for _, position, head in (strides, scales))
        return _Strides(1, *one)
    return _Strides(page_size, strides, scales)
