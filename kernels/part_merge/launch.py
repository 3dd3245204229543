"""The public function: checked arguments, then one launch; plain torch without Triton."""

from __future__ import annotations

import torch

from kvproof.kernels.backend import interpreted, power_above, runs_triton
from kvproof.kernels.checks import dtype_of, require, same_device, shape_of
from kvproof.kernels.interpreter import let_tensors_bound_loops
from kvproof.kernels.part_merge.torch_reference import merged

WIDE = (torch.bfloat16, torch.float16, torch.float32)
MOST_DIM = 1024
ROWS = 4
"""Rows of a program: few, so that many loads of short parts are in flight."""


def merge_parts(
    parts: torch.Tensor,
    sums: torch.Tensor,
    *,
    out: torch.Tensor,
    out_sums: torch.Tensor | None = None,
) -> None:
    """Merge attention over parts of a context, as the kernels of decode and prefill return them.

    Args:
        parts: [parts, tokens, heads, dim] bfloat16, float16 or float32; a part is contiguous,
            parts may lie apart. Where a part is empty nothing is read of it.
        sums: [parts, tokens, heads] float32, natural logarithms, minus infinity for an empty part;
            those of a part are contiguous.
        out: [tokens, heads, dim] of one of these dtypes, contiguous, written; exact zeros where all
            parts are empty.
        out_sums: [tokens, heads] float32, contiguous, written: the logarithms of the whole.

    Raises:
        ArgumentError: An argument does not fit the others.

    """
    _check(parts, sums, out, out_sums)
    if not out.numel():
        return
    if not runs_triton(out):
        found, whole = merged(parts, sums)
        out.copy_(found)
        if out_sums is not None:
            out_sums.copy_(whole)
        return
    from kvproof.kernels.part_merge.triton_kernel import merge

    if interpreted():
        let_tensors_bound_loops()
    tokens, heads, dim = out.shape
    merge[(-(-tokens * heads // ROWS),)](
        parts, sums, out, out_sums, tokens * heads, len(parts), parts.stride(0), sums.stride(0),
        DIM=dim, COLUMNS=power_above(dim), ROWS=ROWS, GPU=not interpreted(),
        num_warps=1 if dim <= 128 else 2,
    )  # fmt: skip


def _check(
    parts: torch.Tensor, sums: torch.Tensor, out: torch.Tensor, out_sums: torch.Tensor | None
) -> None:
    shape_of("out", out, (None, None, None))
    tokens, heads, dim = out.shape
    require(0 < dim <= MOST_DIM, f"head size is {dim}, expected 1 to {MOST_DIM}")
    shape_of("parts", parts, (None, tokens, heads, dim))
    shape_of("sums", sums, (len(parts), tokens, heads))
    require(len(parts) > 0, "parts is empty, expected one part or more")
    dtype_of("parts", parts, WIDE)
    dtype_of("out", out, WIDE)
    dtype_of("sums", sums, (torch.float32,))
    if out_sums is not None:
        shape_of("out_sums", out_sums, (tokens, heads))
        dtype_of("out_sums", out_sums, (torch.float32,))
    whole = {"parts": parts[0], "sums": sums[0], "out": out, "out_sums": out_sums}
    for name, tensor in whole.items():
        if tensor is not None:
            require(
                tensor.is_contiguous(),
                f"{name} has strides {tensor.stride()}: tokens, heads and columns must be"
                " contiguous",
            )
    same_device(parts=parts, sums=sums, out=out, out_sums=out_sums)
