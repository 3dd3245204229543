"""Writes keys into the cache of an indexer."""

from __future__ import annotations

import torch

from kvproof.kernels.backend import interpreted, runs_triton
from kvproof.kernels.checks import (
    dtype_of,
    ids_in_range,
    last_dim_contiguous,
    same_device,
    shape_of,
)
from kvproof.kernels.indexer.keys import MOST, WIDTH, parts_of, scales_of

ROWS = 8
"""Keys of a program."""


def fill(
    keys: torch.Tensor,
    pages: torch.Tensor,
    slots: torch.Tensor,
    *,
    powers: bool = True,
    check_contents: bool = False,
) -> None:
    """Quantise keys to FP8 with a scale each, and write both into their slots.

    Values are key / scale, rounded to nearest even; a scale is that of `scales_of`.

    Args:
        keys: [tokens, 128] bfloat16, float16 or float32, rows any distance apart.
        pages: [pages, page, 132] uint8, as in `keys`; pages may lie apart.
        slots: [tokens] int32 or int64: page id * page + offset; a negative one skips its key.
        powers: Scales are powers of two, as DeepSeek-V3.2 has them.
        check_contents: Also check the values of `slots`; waits for the device.

    Raises:
        ArgumentError: An argument does not fit the others.

    """
    shape_of("keys", keys, (None, WIDTH))
    shape_of("slots", slots, (len(keys),))
    dtype_of("keys", keys, (torch.bfloat16, torch.float16, torch.float32))
    dtype_of("slots", slots, (torch.int32, torch.int64))
    dtype_of("pages", pages, (torch.uint8,))
    last_dim_contiguous("keys", keys)
    last_dim_contiguous("slots", slots)
    same_device(keys=keys, pages=pages, slots=slots)
    values, scales = parts_of(pages)
    if check_contents:
        ids_in_range("slots", slots, low=-1, high=len(pages) * pages.shape[1])
    if not len(keys):
        return
    if runs_triton(keys):
        _launch(keys, pages, slots, powers=powers)
    else:
        fill_torch(keys, values, scales, slots.long(), powers=powers)


def fill_torch(
    keys: torch.Tensor,
    values: torch.Tensor,
    scales: torch.Tensor,
    slots: torch.Tensor,
    *,
    powers: bool,
) -> None:
    """The same in plain torch, into the two views that `parts_of` gives; waits for the device."""
    wanted = slots >= 0
    wide, slots = keys[wanted].float(), slots[wanted]
    scale = scales_of(wide, powers=powers)
    narrow = (wide / scale[:, None]).clamp(-MOST, MOST).to(torch.float8_e4m3fn)
    place = slots // values.shape[1], slots % values.shape[1]
    values[place] = narrow.view(torch.uint8)
    scales[place] = scale


def _launch(keys: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor, *, powers: bool) -> None:
    from kvproof.kernels.indexer.triton_kernel_fill import fill_keys

    fill_keys[(-(-len(keys) // ROWS),)](
        keys, slots, pages.view(torch.float8_e4m3fn), pages.view(torch.float32), len(keys),
        keys.stride(0), ROWS=ROWS, PAGE=pages.shape[1], PAGE_BYTES=pages.stride(0),
        POWERS=powers, INTERPRETED=interpreted(), num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
