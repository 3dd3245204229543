"""The rows in which engines keep a token of a latent cache: 576 bfloat16 columns, or 656 bytes.

Of the 656 bytes (`fp8_ds_mla`) 0 to 511 are 512 float8_e4m3 values, 512 to 527 four float32
scales, each of 128 values, and 528 to 655 the 64 rotary columns in bfloat16. A column is its value
times its scale.
"""

from __future__ import annotations

import torch

from kvproof.kernels import page_formats
from kvproof.kernels.checks import last_dim_contiguous, shape_of

_FORMAT = page_formats.FORMATS["mla-v3.2/1"]
ROW = 656
VALUES = 512
ROPE = 64
KEYS = VALUES + ROPE
GROUP = 128
"""Values that share a scale."""

SCALES = VALUES // GROUP


def pack(columns: torch.Tensor) -> torch.Tensor:
    """Rows [..., 656] of uint8 for columns [..., 576] of any float dtype; each group fills FP8.

    Raises:
        ArgumentError: `columns` has another width.

    """
    shape_of("columns", columns, (*columns.shape[:-1], KEYS))
    return page_formats.pack(_FORMAT, columns[..., None, :])


def unpack(rows: torch.Tensor, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Columns [..., 576] of rows [..., 656]; the product with the scale is in `dtype`.

    Raises:
        ArgumentError: `rows` has another width, or its bytes do not lie one after the other.

    """
    shape_of("rows", rows, (*rows.shape[:-1], ROW))
    last_dim_contiguous("rows", rows)
    return page_formats.unpack(_FORMAT, rows, tokens=1, dtype=dtype)[..., 0, :]


def columns_of(rows: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    """Columns [..., 576] in `dtype` of rows of either kind."""
    return unpack(rows, dtype=dtype) if rows.dtype == torch.uint8 else rows.to(dtype)
