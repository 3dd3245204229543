"""The public function: checked arguments, then one launch; plain torch without Triton."""

from __future__ import annotations

import torch

from kvproof.kernels.backend import interpreted, runs_triton, start_options, starts_ahead
from kvproof.kernels.checks import (
    dtype_of,
    ids_in_range,
    last_dim_contiguous,
    require,
    same_device,
    shape_of,
)
from kvproof.kernels.sparse_latent.rows import ROPE, ROW, VALUES, pack

WIDE = (torch.bfloat16, torch.float16, torch.float32)
TOKENS = 4
"""Tokens of a program: small ones keep more loads in flight."""


def latent_fill(
    latent: torch.Tensor,
    rope: torch.Tensor,
    pages: torch.Tensor,
    slots: torch.Tensor,
    *,
    check_contents: bool = False,
) -> None:
    """Write the latent rows of new tokens into their slots, in one launch.

    Each 128 columns have the scale max |column| / 448, at least 1e-30, and are stored as column /
    scale, rounded to nearest even: the bytes of `sparse_latent.pack`. Columns must be finite.

    Args:
        latent: [tokens, 512] bfloat16, float16 or float32, rows any distance apart.
        rope: [tokens, 64], likewise: rotary keys, rounded to bfloat16.
        pages: [pages, page, 656] uint8, written; pages may lie apart, by multiples of 4 bytes.
        slots: [tokens] int32 or int64: page id * page + offset; a negative one skips its token.
        check_contents: Also check the values of `slots`; waits for the device.

    Raises:
        ArgumentError: An argument does not fit the others.

    """
    shape_of("latent", latent, (None, VALUES))
    shape_of("rope", rope, (len(latent), ROPE))
    shape_of("slots", slots, (len(latent),))
    shape_of("pages", pages, (None, None, ROW))
    dtype_of("latent", latent, WIDE)
    dtype_of("rope", rope, WIDE)
    dtype_of("pages", pages, (torch.uint8,))
    dtype_of("slots", slots, (torch.int32, torch.int64))
    for name, tensor in (("latent", latent), ("rope", rope), ("slots", slots)):
        last_dim_contiguous(name, tensor)
    _check_layout(pages)
    same_device(latent=latent, rope=rope, pages=pages, slots=slots)
    if check_contents:
        ids_in_range("slots", slots, low=-1, high=len(pages) * pages.shape[1])
    if not len(latent):
        return
    if runs_triton(latent):
        _launch(latent, rope, pages, slots)
    else:
        fill_torch(latent, rope, pages, slots)


def fill_torch(
    latent: torch.Tensor, rope: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor
) -> None:
    """The same in plain torch; waits for the device."""
    wanted = slots >= 0
    place = slots[wanted].long()
    rows = pack(torch.cat([latent[wanted].float(), rope[wanted].float()], 1))
    pages[place // pages.shape[1], place % pages.shape[1]] = rows


def _check_layout(pages: torch.Tensor) -> None:
    require(
        pages.stride()[1:] == (ROW, 1) or not pages.numel(),
        f"pages has strides {pages.stride()}: the bytes of a page must be contiguous",
    )
    require(
        (pages.stride(0) | pages.data_ptr()) % 4 == 0,
        f"pages starts at {pages.data_ptr():#x} and has strides {pages.stride()}: scales are"
        " float32, so pages start at multiples of 4 bytes",
    )


def _launch(
    latent: torch.Tensor, rope: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor
) -> None:
    from kvproof.kernels.latent_fill.triton_kernel import fill_rows

    ahead = starts_ahead(latent.device)
    fill_rows[(-(-len(latent) // TOKENS),)](
        latent, rope, slots, pages.view(torch.float8_e4m3fn), pages.view(torch.float32),
        pages.view(torch.bfloat16), len(latent), latent.stride(0), rope.stride(0),
        pages.shape[1], pages.stride(0), TOKENS=TOKENS, INTERPRETED=interpreted(),
        DEPENDENT=ahead, num_warps=TOKENS, enable_fp_fusion=False, **start_options(ahead=ahead),
    )  # fmt: skip
