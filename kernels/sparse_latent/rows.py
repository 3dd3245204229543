"""The rows of 656 bytes in which engines keep a token of a latent cache (`fp8_ds_mla`).

Bytes 0 to 511 are 512 float8_e4m3 values, 512 to 527 four float32 scales, each of 128 values, and
528 to 655 the 64 rotary columns in bfloat16. A column is its value times its scale.
"""

from __future__ import annotations

import torch

from kvproof.kernels.checks import last_dim_contiguous, shape_of

ROW = 656
VALUES = 512
ROPE = 64
KEYS = VALUES + ROPE
GROUP = 128
"""Values that share a scale."""

SCALES = VALUES // GROUP
MOST = 448.0
"""Greatest number of float8_e4m3."""


def pack(columns: torch.Tensor) -> torch.Tensor:
    """Rows [..., 656] of uint8 for columns [..., 576] of any float dtype; each group fills FP8.

    Raises:
        ArgumentError: `columns` has another width.

    """
    shape_of("columns", columns, (*columns.shape[:-1], KEYS))
    groups = columns[..., :VALUES].float().unflatten(-1, (SCALES, GROUP))
    scales = groups.abs().amax(-1).div(MOST).clamp_min(1e-30)
    values = (groups / scales[..., None]).clamp(-MOST, MOST).to(torch.float8_e4m3fn)
    parts = (
        values.flatten(-2).view(torch.uint8),
        scales.view(torch.uint8),
        columns[..., VALUES:].to(torch.bfloat16).contiguous().view(torch.uint8),
    )
    return torch.cat(parts, dim=-1)


def unpack(rows: torch.Tensor, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Columns [..., 576] of rows [..., 656]; the product with the scale is in `dtype`.

    Raises:
        ArgumentError: `rows` has another width, or its bytes do not lie one after the other.

    """
    shape_of("rows", rows, (*rows.shape[:-1], ROW))
    last_dim_contiguous("rows", rows)
    values = rows[..., :VALUES].contiguous().view(torch.float8_e4m3fn).to(dtype)
    scales = rows[..., VALUES : VALUES + 4 * SCALES].contiguous().view(torch.float32).to(dtype)
    rope = rows[..., VALUES + 4 * SCALES :].contiguous().view(torch.bfloat16).to(dtype)
    wide = values.unflatten(-1, (SCALES, GROUP)) * scales[..., None]
    return torch.cat((wide.flatten(-2), rope), dim=-1)
