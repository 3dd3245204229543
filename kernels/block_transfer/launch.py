"""Checked entry points of the block transfer, and the choice of its tiles."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch

from kvproof.kernels.backend import power_above, runs_triton, starts_ahead
from kvproof.kernels.block_transfer.host_memory import copy_in_host_memory
from kvproof.kernels.block_transfer.layouts import HEADS, SPLIT, TOKENS, PagedLayers
from kvproof.kernels.block_transfer.torch_reference import copy_blocks
from kvproof.kernels.checks import dtype_of, ids_in_range, require, same_device, shape_of

Direction = Literal["gather", "scatter"]


class Tiling(NamedTuple):
    """Most units of one program, its warps, whether it may start early."""

    tile: int
    warps: int
    ahead: bool


class Part(NamedTuple):
    """`planes` planes from `first_plane` on, counted over all objects, in a separate buffer.

    The buffer starts with byte `origin` of the objects.
    """

    buffer: torch.Tensor
    origin: int
    first_plane: int
    planes: int


class Cut(NamedTuple):
    """How the planes of a transfer are cut among programs."""

    sizes: tuple[int, int, int, int]
    """Tiles of a plane of an object, units of one, blocks and tokens of an object."""
    constants: tuple[int | bool, ...]
    """Compile-time constants of the kernel, in its order."""
    warps: int


class Access(NamedTuple):
    """Bytes of one store, and bytes of the source words it is composed of.

    `shifted`: it is composed of words of 16 bytes, shifted into position.
    """

    unit: int
    word: int
    shifted: bool


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
        objects: [objects, kv, layers, tokens, row bytes], of any dtype, each object contiguous. On
            the device of the layers or in pinned memory. `blocks` covers `tokens`; of the last
            block only the tokens that the object has are copied.
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


def access(
    direction: Direction, paged: PagedLayers, objects: torch.Tensor, part: Part | None = None
) -> Access:
    """The widest accesses that every address of the transfer allows (G5)."""
    start = part.buffer.data_ptr() - part.origin if part else objects.data_ptr()
    plane = objects.shape[3] * paged.row_bytes
    step = objects.stride(0) * objects.element_size()
    flat = math.gcd(16, start, step, plane, paged.block_bytes)
    page = math.gcd(paged.alignment, paged.block_bytes)
    unit, other = (flat, page) if direction == "gather" else (page, flat)
    run = {
        HEADS: paged.head_bytes,
        SPLIT: math.gcd(paged.head_bytes, paged.scale_bytes),
    }.get(paged.order, 16)
    word = math.gcd(unit, other, run)
    # With heads of 16 bytes a unit has bytes of two rows at most. Then single bytes are slower than
    # shifted words, but words of 2 and 4 bytes are not.
    shifted = (paged.order == TOKENS and word < 16) or (
        paged.order == HEADS and word == 1 and paged.head_bytes >= 16
    )
    return Access(unit, word, shifted=shifted and unit == 16)


def tiling(found: Access, device: torch.device) -> Tiling:
    """Programs of 4 KiB: small ones keep the most loads in flight, at every unit size."""
    return Tiling(tile=min(2048, 4096 // found.unit), warps=4, ahead=starts_ahead(device))


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
    if runs_triton(block_ids):
        launch(direction, paged, block_ids, objects, skip_tokens=skip_tokens)
    elif paged.table.device.type == "cpu":
        ids = block_ids.tolist()
        copy_in_host_memory(direction, paged, ids, objects.unbind(), skip_tokens=skip_tokens)
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
    """Refuse invalid arguments, before anything is enqueued."""
    check_objects(paged, objects, skip_tokens=skip_tokens)
    shape_of("block_ids", block_ids, (objects.shape[0], -(-objects.shape[3] // paged.page)))
    dtype_of("block_ids", block_ids, (torch.int32, torch.int64))
    require(block_ids.is_contiguous(), f"block_ids has strides {block_ids.stride()}")
    same_device(layers=paged.table, block_ids=block_ids)
    if not (paged.table.is_cuda and objects.device.type == "cpu" and objects.is_pinned()):
        same_device(layers=paged.table, objects=objects)
    if check_ids:
        ids_in_range("block_ids", block_ids, low=0, high=paged.pages)


def check_objects(paged: PagedLayers, objects: torch.Tensor, *, skip_tokens: int) -> None:
    """Refuse objects whose shape, dtype or strides do not fit the layers."""
    require(objects.dim() == 5, f"objects has {objects.dim()} dimensions, expected 5")
    tokens, row = objects.shape[3], paged.row_bytes // objects.element_size()
    require(
        row * objects.element_size() == paged.row_bytes,
        f"objects is {objects.dtype}, a row has {paged.row_bytes} bytes: use uint8",
    )
    shape_of("objects", objects, (None, paged.kv, len(paged.layers), None, row))
    require(
        not objects.numel() or objects[0].is_contiguous(),
        f"objects has strides {objects.stride()}: each object must be contiguous",
    )
    require(skip_tokens >= 0, f"skip_tokens is {skip_tokens}, expected 0 or more")
    require(
        -(-tokens // paged.page) * paged.block_bytes < 1 << 31,
        f"objects of {tokens} tokens exceed 2 GiB a plane",
    )


def cut(
    direction: Direction,
    paged: PagedLayers,
    objects: torch.Tensor,
    *,
    skip_tokens: int = 0,
    part: Part | None = None,
    tuned: Tiling | None = None,
) -> Cut:
    """Cut the planes of a transfer; other parts in buffers as well aligned are cut alike."""
    found = access(direction, paged, objects, part)
    choice = tuned or tiling(found, paged.table.device)
    tokens = objects.shape[3]
    blocks = -(-tokens // paged.page)
    units = blocks * paged.block_bytes // found.unit
    tile = min(choice.tile, power_above(units))
    # Equal tiles, in whole warps of stores: a short last one would leave its program idle.
    span = min(tile, -(-units // -(-units // tile) // 32) * 32)
    edges = bool(skip_tokens % paged.page or tokens % paged.page)
    return Cut(
        (-(-units // span), span, blocks, tokens),
        (
            direction == "gather", paged.order, paged.page, paged.heads, paged.head_bytes,
            paged.scale_bytes, found.unit, found.word, tile, found.shifted, edges, choice.ahead,
        ),
        choice.warps,
    )  # fmt: skip


def launch(
    direction: Direction,
    paged: PagedLayers,
    block_ids: torch.Tensor,
    objects: torch.Tensor,
    *,
    skip_tokens: int = 0,
    part: Part | None = None,
    tuned: Tiling | None = None,
    made: Cut | None = None,
) -> None:
    """Launch the kernel on checked arguments.

    With `part` only some planes are moved, to or from another buffer than `objects`, which then
    only defines sizes. `tuned` overrides the choice of tiles; `made` is a cut made before.
    """
    # Triton is an optional dependency: without it only the torch path is there.
    from kvproof.kernels.block_transfer.triton_kernel import transfer

    to = made or cut(direction, paged, objects, skip_tokens=skip_tokens, part=part, tuned=tuned)
    planes = len(block_ids) * paged.planes
    buffer, origin, first_plane, count = part or Part(objects, 0, 0, planes)
    grid = to.sizes[0] * count
    key = (paged.table.device, block_ids.dtype, to.constants, to.warps)
    given = (
        paged.table, block_ids, buffer.view(torch.uint8),
        origin, objects.stride(0) * objects.element_size(), paged.page_stride,
        first_plane, paged.planes, *to.sizes, skip_tokens, *to.constants,
    )  # fmt: skip
    # Only constants compile anew: a compiled kernel is started without looking at the others.
    known = _COMPILED.get(key)
    if known is not None:
        known[(grid, 1, 1)](*given)
        return
    found = transfer[(grid,)](*given, num_warps=to.warps, launch_pdl=to.constants[-1])
    if found is not None:
        _COMPILED[key] = found


_COMPILED: dict[object, Any] = {}
"""Device, dtype of ids, constants and warps -> the compiled kernel."""
