"""Checked entry points of the block transfer, and how its tiles are chosen."""

from __future__ import annotations

import math
import os
from typing import Literal, NamedTuple

import torch

from kvproof.kernels.block_transfer.layouts import HEADS, SPLIT, PagedLayers
from kvproof.kernels.block_transfer.torch_reference import copy_blocks
from kvproof.kernels.checks import dtype_of, ids_in_range, require, same_device, shape_of

Direction = Literal["gather", "scatter"]


class Tiling(NamedTuple):
    """Most units of one program, its warps, and hints for the caches."""

    tile: int
    warps: int
    loads: str = ""
    stores: str = ""
    pdl: bool = False


class Access(NamedTuple):
    """Bytes of one store, and bytes of the words that it is put together from."""

    unit: int
    word: int


def gather(
    paged: PagedLayers,
    block_ids: torch.Tensor,
    objects: torch.Tensor,
    *,
    skip_tokens: int = 0,
    check_ids: bool = False,
) -> None:
    """Copy pages into flat objects: one launch for all layers, K and V (G4).

    Args:
        paged: The layers.
        block_ids: Row i holds the pages of object i, int32 or int64 [objects, blocks]. Ids below 1
            are holes: never read, and their part of the object stays as it is.
        objects: [objects, kv, layers, tokens, row bytes], of any dtype; the last two dimensions
            contiguous. On the device of the layers or in pinned memory. `blocks` covers `tokens`;
            of the last block only the tokens that the object has are copied.
        skip_tokens: So many tokens at the start, counted over all objects, stay untouched (G6).
        check_ids: Refuse ids beyond the pages. Waits for the device.

    Raises:
        ArgumentError: A shape, dtype, stride or device does not fit.

    """
    _transfer("gather", paged, block_ids, objects, skip_tokens=skip_tokens, check_ids=check_ids)


def scatter(
    paged: PagedLayers,
    block_ids: torch.Tensor,
    objects: torch.Tensor,
    *,
    skip_tokens: int = 0,
    check_ids: bool = False,
) -> None:
    """Copy flat objects into pages; arguments as in `gather`. Holes are never written."""
    _transfer("scatter", paged, block_ids, objects, skip_tokens=skip_tokens, check_ids=check_ids)


def access(direction: Direction, paged: PagedLayers, objects: torch.Tensor) -> Access:
    """The widest accesses that every address of the transfer allows (G5)."""
    steps = (size * objects.element_size() for size in objects.stride()[:3])
    flat = math.gcd(16, objects.data_ptr(), paged.block_bytes, *steps)
    page = math.gcd(paged.alignment, paged.block_bytes)
    unit, other = (flat, page) if direction == "gather" else (page, flat)
    run = {
        HEADS: paged.head_bytes,
        SPLIT: math.gcd(paged.head_bytes, paged.scale_bytes),
    }.get(paged.order, 16)
    return Access(unit, math.gcd(unit, other, run))


def tiling(paged: PagedLayers, found: Access) -> Tiling:
    """Tiles of 16 KiB where a unit is one word; smaller ones where each takes many loads."""
    words = found.unit // found.word
    if words == 1:
        return Tiling(tile=1024, warps=8)
    return Tiling(tile=512, warps=8)


def _transfer(
    direction: Direction,
    paged: PagedLayers,
    block_ids: torch.Tensor,
    objects: torch.Tensor,
    *,
    skip_tokens: int,
    check_ids: bool,
) -> None:
    check(paged, block_ids, objects, skip_tokens=skip_tokens, check_ids=check_ids)
    if not block_ids.numel() or not objects.numel():
        return
    if block_ids.is_cuda or os.environ.get("TRITON_INTERPRET") == "1":
        launch(direction, paged, block_ids, objects, skip_tokens=skip_tokens)
    else:
        copy_blocks(direction, paged, block_ids, objects, skip_tokens=skip_tokens)


def check(
    paged: PagedLayers,
    block_ids: torch.Tensor,
    objects: torch.Tensor,
    *,
    skip_tokens: int,
    check_ids: bool,
) -> None:
    """Refuse arguments that do not fit, before anything is enqueued."""
    require(objects.dim() == 5, f"objects has {objects.dim()} dimensions, expected 5")
    tokens, row = objects.shape[3], paged.row_bytes // objects.element_size()
    require(
        row * objects.element_size() == paged.row_bytes,
        f"objects is {objects.dtype}, a row has {paged.row_bytes} bytes: use uint8",
    )
    shape_of("objects", objects, (None, paged.kv, len(paged.layers), None, row))
    require(
        objects.stride()[3:] == (row, 1) or not objects.numel(),
        f"objects has strides {objects.stride()}, expected (any, any, any, {row}, 1)",
    )
    blocks = -(-tokens // paged.page)
    shape_of("block_ids", block_ids, (objects.shape[0], blocks))
    dtype_of("block_ids", block_ids, (torch.int32, torch.int64))
    require(block_ids.is_contiguous(), f"block_ids has strides {block_ids.stride()}")
    require(skip_tokens >= 0, f"skip_tokens is {skip_tokens}, expected 0 or more")
    require(blocks * paged.block_bytes < 1 << 31, f"objects of {tokens} tokens exceed 2 GiB a plane")
    same_device(layers=paged.table, block_ids=block_ids)
    if not (paged.table.is_cuda and objects.device.type == "cpu" and objects.is_pinned()):
        same_device(layers=paged.table, objects=objects)
    if check_ids:
        ids_in_range("block_ids", block_ids, low=0, high=paged.pages)


def launch(
    direction: Direction,
    paged: PagedLayers,
    block_ids: torch.Tensor,
    objects: torch.Tensor,
    *,
    skip_tokens: int = 0,
    tuned: Tiling | None = None,
) -> None:
    """Launch the kernel on checked arguments; `tuned` overrides the choice of tiles."""
    from kvproof.kernels.block_transfer import triton_kernel

    found = access(direction, paged, objects)
    choice = tuned or tiling(paged, found)
    count, blocks = block_ids.shape
    units = blocks * paged.block_bytes // found.unit
    tile = min(choice.tile, _power_of_two(units))
    tiles = -(-units // tile)
    # Equal tiles, in whole warps of stores: a short last one would leave its program idle.
    span = min(tile, -(-units // tiles // 32) * 32)
    tiles = -(-units // span)
    tokens = objects.shape[3]
    steps = [size * objects.element_size() for size in objects.stride()[:3]]
    extra = {"launch_pdl": True} if choice.pdl else {}
    triton_kernel.transfer[(tiles * count * paged.kv * len(paged.layers),)](
        paged.table, block_ids, objects.view(torch.uint8),
        len(paged.layers), tiles, span, blocks, tokens, skip_tokens,
        paged.kv_stride, paged.page_stride, steps[0], steps[1], steps[2],
        GATHER=direction == "gather", ORDER=paged.order, KV=paged.kv, PAGE=paged.page,
        HEADS=paged.heads, HEAD=paged.head_bytes, TAIL=paged.scale_bytes,
        UNIT=found.unit, WORD=found.word, TILE=tile,
        EDGES=bool(skip_tokens % paged.page or tokens % paged.page),
        LOADS=choice.loads, STORES=choice.stores, PDL=choice.pdl,
        num_warps=choice.warps, **extra,
    )  # fmt: skip


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
