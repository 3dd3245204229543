"""The pages in which engines keep the keys of an indexer: FP8 values, then their scales.

A page of P tokens has 132 * P bytes: 128 float8_e4m3 values of each token, then a float32 scale of
each. A key is its values times its scale. vLLM, SGLang and DeepGEMM have this layout.
"""

from __future__ import annotations

import torch

from kvproof.kernels.checks import require, shape_of

WIDTH = 128
"""Columns of a key."""

ROW = WIDTH + 4
MOST = 448.0
"""Greatest number of float8_e4m3."""

LEAST = 1e-4
"""Magnitude to which smaller keys are raised before they get a scale, as engines do."""


def scales_of(keys: torch.Tensor, *, powers: bool) -> torch.Tensor:
    """Scales [...] of float32 keys [..., 128]: the largest value of a key becomes 448.

    With `powers` a scale is raised to a power of two (UE8M0), so that the division is exact.
    """
    # A GPU would multiply by the inverse of a number, not divide by it.
    most = torch.full((), MOST, dtype=torch.float32, device=keys.device)
    scales = keys.abs().amax(-1).clamp_min(LEAST) / most
    if not powers:
        return scales
    return ((scales.view(torch.int32) + 0x7FFFFF) & 0x7F800000).view(torch.float32)


def pack(keys: torch.Tensor, *, powers: bool = True) -> torch.Tensor:
    """Pages [pages, page, 132] of uint8 for keys [pages, page, 128] of any float dtype.

    Raises:
        ArgumentError: `keys` has another shape.

    """
    shape_of("keys", keys, (None, None, WIDTH))
    wide = keys.float()
    scales = scales_of(wide, powers=powers)
    values = (wide / scales[..., None]).clamp(-MOST, MOST).to(torch.float8_e4m3fn)
    parts = (values.view(torch.uint8).flatten(1), scales.view(torch.uint8).flatten(1))
    return torch.cat(parts, dim=1).view(*keys.shape[:2], ROW)


def unpack(pages: torch.Tensor, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Keys [pages, page, 128] of pages [pages, page, 132]; the product with the scale in `dtype`.

    Raises:
        ArgumentError: `pages` has another width, or a page has gaps.

    """
    values, scales = parts_of(pages)
    return values.contiguous().view(torch.float8_e4m3fn).to(dtype) * scales.to(dtype)[..., None]


def parts_of(pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of pages: bytes [pages, page, 128] of values, and scales [pages, page] in float32.

    Raises:
        ArgumentError: As `unpack`.

    """
    shape_of("pages", pages, (None, None, ROW))
    count, page, _ = pages.shape
    require(
        pages.stride()[1:] == (ROW, 1) and pages.stride(0) % 4 == 0,
        f"pages has strides {pages.stride()}: the bytes of a page lie one after the other",
    )
    values = pages.as_strided((count, page, WIDTH), (pages.stride(0), WIDTH, 1))
    start = pages.storage_offset() + page * WIDTH
    scales = pages.as_strided((count, page * 4), (pages.stride(0), 1), start)
    return values, scales.view(torch.float32)
