"""The block transfer in plain torch: by token as the reference, by block as a fallback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kvproof.kernels.block_transfer.layouts import LAYOUTS, SPLIT

if TYPE_CHECKING:
    from kvproof.kernels.block_transfer.layouts import PagedLayers


def copy_tokens(
    direction: str,
    paged: PagedLayers,
    block_ids: torch.Tensor,
    objects: torch.Tensor,
    *,
    skip_tokens: int = 0,
) -> None:
    """Copy one token of one layer after the other."""
    ids = block_ids.tolist()
    count, _, _, tokens, _ = objects.shape
    flat = objects.view(torch.uint8)
    for item in range(count):
        for token in range(max(0, skip_tokens - item * tokens), tokens):
            block = ids[item][token // paged.page]
            if block < 1:
                continue
            for index, layer in enumerate(paged.layers):
                for plane in range(paged.kv):
                    row = flat[item, plane, index, token]
                    _copy_row(direction, paged, layer, plane, block, token % paged.page, row)


def copy_blocks(
    direction: str,
    paged: PagedLayers,
    block_ids: torch.Tensor,
    objects: torch.Tensor,
    *,
    skip_tokens: int = 0,
) -> None:
    """Copy layer by layer, all whole blocks of an object at once."""
    tokens = objects.shape[3]
    if skip_tokens % paged.page or tokens % paged.page:
        copy_tokens(direction, paged, block_ids, objects, skip_tokens=skip_tokens)
        return
    flat = objects.view(torch.uint8).unflatten(3, (-1, paged.page))
    first = torch.arange(block_ids.numel(), device=block_ids.device).view_as(block_ids) * paged.page
    wanted = (block_ids > 0) & (first >= skip_tokens)
    for item, (row, keep) in enumerate(zip(block_ids, wanted, strict=True)):
        where, ids = keep.nonzero()[:, 0], row[keep].long()
        for index, layer in enumerate(paged.layers):
            for plane in range(paged.kv):
                _copy_plane(direction, paged, layer, plane, ids, flat[item, plane, index], where)


def _copy_row(
    direction: str,
    paged: PagedLayers,
    layer: torch.Tensor,
    plane: int,
    block: int,
    position: int,
    row: torch.Tensor,
) -> None:
    for part, start in _parts(paged, layer, plane):
        there = part[block, position]
        here = row[start : start + there.numel()].view(there.shape)
        source, target = (there, here) if direction == "gather" else (here, there)
        target.copy_(source)


def _copy_plane(
    direction: str,
    paged: PagedLayers,
    layer: torch.Tensor,
    plane: int,
    ids: torch.Tensor,
    rows: torch.Tensor,
    where: torch.Tensor,
) -> None:
    for part, start in _parts(paged, layer, plane):
        shape = part.shape[2:]
        mine = rows[..., start : start + shape.numel()].unflatten(-1, tuple(shape))
        if direction == "gather":
            mine[where] = part[ids]
        else:
            part[ids] = mine[where]


def _parts(paged: PagedLayers, layer: torch.Tensor, plane: int) -> list[tuple[torch.Tensor, int]]:
    """Views [pages, page, ...] of one plane of a layer, with the offset of each in a row."""
    dims = LAYOUTS[paged.layout].dims
    view = layer.view(torch.uint8)
    if "kv" in dims:
        view = view.select(dims.index("kv"), plane)
    if paged.order == SPLIT:
        border = paged.page * paged.head_bytes
        page = view.flatten(1)
        values = page[:, :border].unflatten(1, (paged.page, paged.head_bytes))
        scales = page[:, border:].unflatten(1, (paged.page, paged.scale_bytes))
        return [(values, 0), (scales, paged.head_bytes)]
    rest = [dim for dim in dims if dim != "kv"]
    order = [rest.index(dim) for dim in ("pages", "page", "heads", "bytes") if dim in rest]
    return [(view.permute(order), 0)]
