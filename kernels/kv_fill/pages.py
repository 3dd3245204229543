"""Pages of the fill, checked once and viewed in one order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from kvproof.kernels.checks import (
    ArgumentError,
    dtype_of,
    last_dim_contiguous,
    require,
    same_device,
    shape_of,
)

Layout = Literal["NHD", "HND"]
Quantised = Literal["", "fp8", "int8", "int4"]
_LAYOUTS = get_args(Layout)

FLOAT8 = torch.float8_e4m3fn
FLOATS = (torch.bfloat16, torch.float16, torch.float32)

LEAST = 2.0**-100
"""A row with only smaller elements counts as zeros in int8: its scale has no inverse."""

LEAST_STEP = 1e-6
"""Smallest scale of int4, as vLLM writes it."""

WIDEST = 8192
"""Most elements of a row: a program holds one of K and one of V in registers."""


@dataclass(frozen=True, kw_only=True)
class Pages:
    """Views [pages, page, heads, dim] of a layer's pages, and the scales of their values."""

    k: torch.Tensor
    v: torch.Tensor | None
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None
    k_scales: torch.Tensor | None
    v_scales: torch.Tensor | None
    quantised: Quantised

    @property
    def page_size(self) -> int:
        """Positions of a page."""
        return int(self.k.shape[1])


def checked(
    k: torch.Tensor,
    v: torch.Tensor | None,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor | None,
    *,
    layout: Layout,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    k_scales: torch.Tensor | None,
    v_scales: torch.Tensor | None,
) -> Pages:
    """Check the pages for rows of K and V; returns their views. Raises ArgumentError."""
    require(layout in _LAYOUTS, f"layout is {layout!r}, expected 'NHD' or 'HND'")
    shape_of("k_pages", k_pages, (None, None, None, None))
    quantised = _quantisation(k_pages, k_scale, k_scales)
    _fits("k", k, k_pages, layout, k_scale, k_scales, quantised)
    slots = len(k_pages) * _by_position(k_pages, layout).shape[1]
    require(slots < 1 << 31, f"k_pages has {slots} slots, expected less than 2**31")
    require((v is None) == (v_pages is None), "v and v_pages must be given together")
    if v is not None and v_pages is not None:
        _fits("v", v, v_pages, layout, v_scale, v_scales, quantised)
        _alike(k, v, k_pages, v_pages)
    same_device(k=k, v=v, k_pages=k_pages, v_pages=v_pages, k_scale=k_scale, k_scales=k_scales)
    return Pages(
        k=_by_position(k_pages, layout),
        v=None if v_pages is None else _by_position(v_pages, layout),
        k_scale=k_scale,
        v_scale=v_scale,
        k_scales=k_scales,
        v_scales=v_scales,
        quantised=quantised,
    )


def _by_position(pages: torch.Tensor, layout: Layout) -> torch.Tensor:
    return pages if layout == "NHD" else pages.transpose(1, 2)


def _quantisation(
    pages: torch.Tensor, scale: torch.Tensor | None, scales: torch.Tensor | None
) -> Quantised:
    require(
        scale is None or scales is None, "k_scale is for pages of fp8, k_scales for int8 and int4"
    )
    if scales is not None:
        return "int4" if pages.dtype == torch.uint8 else "int8"
    return "fp8" if scale is not None else ""


def _fits(
    name: str,
    rows: torch.Tensor,
    pages: torch.Tensor,
    layout: Layout,
    scale: torch.Tensor | None,
    scales: torch.Tensor | None,
    quantised: Quantised,
) -> None:
    slots, page, heads, width = _by_position(pages, layout).shape
    dim = 2 * width if quantised == "int4" else width
    shape_of(name, rows, (None, heads, dim))
    require(1 <= dim <= WIDEST, f"{name} has rows of {dim} elements, expected 1 to {WIDEST}")
    last_dim_contiguous(name, rows)
    last_dim_contiguous(f"{name}_pages", pages)
    if quantised:
        dtype_of(name, rows, FLOATS)
    if quantised == "fp8":
        dtype_of(f"{name}_pages", pages, (FLOAT8,))
        _scale(f"{name}_scale", scale, (heads,))
    elif quantised:
        dtype_of(f"{name}_pages", pages, (torch.int8, torch.uint8))
        _scale(f"{name}_scales", scales, (slots, page, heads))
    elif rows.dtype != pages.dtype:
        raise ArgumentError(
            f"{name} is {rows.dtype} and {name}_pages {pages.dtype}: they must be equal, or"
            f" {name}_scale (fp8) or {name}_scales (int8, int4) must say how to quantise"
        )


def _scale(name: str, scale: torch.Tensor | None, shape: tuple[int, ...]) -> None:
    require(scale is not None, f"{name} is missing")
    assert scale is not None
    shape_of(name, scale, shape)
    dtype_of(name, scale, (torch.float32,))


def _alike(k: torch.Tensor, v: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor) -> None:
    shape_of("v", v, k.shape)
    shape_of("v_pages", v_pages, k_pages.shape)
    dtype_of("v", v, (k.dtype,))
    if k_pages.stride() != v_pages.stride():
        raise ArgumentError(
            f"k_pages has strides {k_pages.stride()} and v_pages {v_pages.stride()}:"
            " they must be equal"
        )
