"""The public function: checked arguments, then one launch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from kvproof.kernels.backend import interpreted, runs_triton
from kvproof.kernels.checks import (
    dtype_of,
    ids_in_range,
    last_dim_contiguous,
    require,
    same_device,
    shape_of,
)
from kvproof.kernels.interpreter import let_tensors_bound_loops
from kvproof.kernels.latent import launch as latent
from kvproof.kernels.sparse_latent.rows import KEYS, ROW, VALUES
from kvproof.kernels.sparse_latent.torch_reference import sparse_latent_torch


class _Tiles(NamedTuple):
    """Heads and chosen tokens that a program of the portable kernel has at a time, and how."""

    rows: int
    tile: int
    stages: int
    warps: int


NARROW = _Tiles(16, 16, 1, 8)
WIDE = _Tiles(64, 64, 2, 8)
"""For rows of 656 bytes and of bfloat16. `WIDE` was never timed."""

SMALL_POOL = 1 << 31
"""Bytes of pages below which 32 bits are enough for every address."""


class Workspace(NamedTuple):
    """Room for the parts of query tokens that several programs share; for launches of one stream.

    Leftovers of a launch there do not matter to the next.
    """

    parts: torch.Tensor
    norms: torch.Tensor


def workspace(heads: int, *, device: torch.device) -> Workspace:
    """A workspace for launches with this many heads, of any number of tokens."""
    rows = latent.cut(heads, processors=latent.processors(device)).part_rows
    return Workspace(
        torch.empty(rows * VALUES, dtype=torch.float32, device=device),
        torch.empty(rows, dtype=torch.float32, device=device),
    )


def sparse_latent(
    q: torch.Tensor,
    pages: torch.Tensor,
    indices: torch.Tensor,
    *,
    out: torch.Tensor,
    scale: float,
    sinks: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    space: Workspace | None = None,
    check_contents: bool = False,
) -> None:
    """Attend the chosen tokens of each query token; each sees exactly those that it names.

    Decode and prefill are the same: query tokens of all requests one after the other. A chosen
    token that stands in a row twice counts twice. A query token without one gets zeros.

    Args:
        q: [tokens, heads, 576] bfloat16: 512 columns for the values, then 64 rotary ones.
        pages: [pages, page, 656] uint8, rows as in `rows`, or [pages, page, 576] bfloat16; pages
            may lie apart.
        indices: [tokens, chosen] int32: a slot is page id * page + offset; -1 stands for none.
        out: [tokens, heads, 512] of q's dtype.
        scale: Logits are products times `scale`, above 0.
        sinks: [heads] float32, a logit per head that takes weight and adds no value.
        lse: [tokens, heads] float32, contiguous, written: natural logarithms of the sums of the
            exponentials of logits, that of the sink among them; minus infinity without any.
        space: See `workspace`; without it one is made.
        check_contents: Also check the values of `indices`; waits for the device.

    Raises:
        ArgumentError: An argument does not fit the others.

    """
    given = {"q": q, "pages": pages, "indices": indices, "out": out, "sinks": sinks,
             "lse": lse}  # fmt: skip
    _check(given, scale)
    if check_contents:
        ids_in_range("indices", indices, low=-1, high=len(pages) * pages.shape[1])
    if not q.numel():
        return
    if not runs_triton(q):
        sparse_latent_torch(**given, scale=scale)
    elif _taken(given):
        _launch_hopper(given, scale, space or workspace(q.shape[1], device=q.device))
    else:
        _launch(given, scale)


def _launch(given: dict[str, Any], scale: float) -> None:
    if interpreted():
        let_tensors_bound_loops()
    from kvproof.kernels.sparse_latent.triton_kernel import sparse_latent_kernel

    q, pages, indices, out = (given[name] for name in ("q", "pages", "indices", "out"))
    tokens, heads, _ = q.shape
    is_wide = pages.dtype == torch.bfloat16
    tiles = WIDE if is_wide else NARROW
    sparse_latent_kernel[(tokens, -(-heads // tiles.rows))](
        q, pages, indices, out, given["lse"], given["sinks"], scale, heads,
        *q.stride()[:2], *out.stride()[:2], indices.stride(0), pages.stride(0),
        PAGE=pages.shape[1], CHOSEN=indices.shape[1], ROWS=tiles.rows, TILE=tiles.tile,
        STAGES=tiles.stages, WIDE=is_wide, GPU=not interpreted(), num_warps=tiles.warps,
    )  # fmt: skip


def _taken(given: dict[str, Any]) -> bool:
    """Whether the Hopper kernel can do it."""
    q, pages, out = given["q"], given["pages"], given["out"]
    return bool(
        pages.is_contiguous()
        and q.is_contiguous()
        and out.is_contiguous()
        and all(tensor.data_ptr() % 16 == 0 for tensor in (q, pages))
        and latent.is_hopper(q.device)
    )


def _launch_hopper(given: dict[str, Any], scale: float, space: Workspace) -> None:
    from kvproof.kernels.latent.triton_kernel_hopper import descriptor
    from kvproof.kernels.latent.triton_kernel_sparse import sparse_latent_hopper

    q, pages, indices, out = (given[name] for name in ("q", "pages", "indices", "out"))
    tokens, heads, _ = q.shape
    chosen = indices.shape[1]
    shape = latent.cut(heads, processors=latent.processors(q.device))
    require(
        space.norms.numel() >= shape.part_rows and space.parts.numel() >= shape.part_rows * VALUES,
        f"the workspace has room for {space.norms.numel()} rows, this launch needs"
        f" {shape.part_rows}; make it for {heads} heads",
    )
    is_whole = latent.whole(tokens, shape)
    others = (None, None)
    if pages.dtype == torch.uint8:
        others = (pages.view(torch.float32), pages.view(torch.bfloat16))
    sparse_latent_hopper[(shape.chunks * shape.head_blocks,)](
        *(descriptor(q, tokens * heads, KEYS, KEYS, (latent.ROWS, wide)) for wide in (256, 64)),
        pages, *others, indices, out, given["lse"], space.parts, space.norms, given["sinks"], scale,
        tokens, shape.chunks, indices.stride(0), VALUES,
        HEADS=heads, HEAD_BLOCKS=shape.head_blocks, LEAST=latent.LEAST_TILES, SIZE=chosen,
        WHOLE=is_whole, SMALL=pages.nbytes < SMALL_POOL, num_warps=4,
    )  # fmt: skip
    if is_whole:
        return
    latent.combine(
        out[:, None], None, given["sinks"], shape,
        lse=given["lse"], size=chosen, parts=space.parts, norms=space.norms, ahead=True,
    )  # fmt: skip


def _check(given: dict[str, Any], scale: float) -> None:
    q, pages, indices, out = (given[name] for name in ("q", "pages", "indices", "out"))
    shape_of("q", q, (None, None, KEYS))
    tokens, heads, _ = q.shape
    dtype_of("pages", pages, (torch.uint8, torch.bfloat16))
    row = KEYS if pages.dtype == torch.bfloat16 else ROW
    shape_of("pages", pages, (None, None, row))
    shape_of("indices", indices, (tokens, None))
    shape_of("out", out, (tokens, heads, VALUES))
    dtype_of("q", q, (torch.bfloat16,))
    dtype_of("indices", indices, (torch.int32,))
    dtype_of("out", out, (torch.bfloat16,))
    for name in ("q", "pages", "indices", "out"):
        last_dim_contiguous(name, given[name])
    require(indices.shape[1] > 0, "indices names no token; expected at least one column, of -1")
    require(
        pages.stride(1) == row and pages.stride(0) % 4 == 0,
        f"pages has strides {pages.stride()}: rows of a page lie {row} elements apart, and pages a"
        " multiple of 4",
    )
    require(scale > 0, f"scale is {scale}, expected a number above 0")
    if given["sinks"] is not None:
        shape_of("sinks", given["sinks"], (heads,))
        dtype_of("sinks", given["sinks"], (torch.float32,))
    if given["lse"] is not None:
        shape_of("lse", given["lse"], (tokens, heads))
        dtype_of("lse", given["lse"], (torch.float32,))
        require(given["lse"].is_contiguous(), f"lse has strides {given['lse'].stride()}")
    same_device(**given)
