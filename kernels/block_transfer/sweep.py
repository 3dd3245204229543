"""Cells of the block transfer.

Arguments that every provider is called with:

- `direction`: gather (pages to objects) or scatter; `layout`: a key of `layouts.LAYOUTS`;
- `pool`: uint8 [layers, bytes]; `layers_of(case, pool)` gives each layer in the dimensions of its
  layout. Page 0 is the null page;
- `block_ids`: int32 [objects, blocks], a row of pages per object; 0 is a hole;
- `objects`: uint8 [objects, bytes]; `objects_of(case, objects)` gives [objects, kv, layers, tokens,
  row bytes]. A hole's part and the skipped tokens keep what they held;
- `skip`: leading tokens, counted over all objects, that stay untouched.

Axes: `shift` bytes lie before each layer, `pad` bytes after each page and each object, so that
addresses are aligned to less than 16 bytes; `holes` of the blocks are null.
"""

from __future__ import annotations

import random
from itertools import product
from typing import NamedTuple

import torch

from kvproof.kernels.block_transfer.launch import check, gather, launch, scatter
from kvproof.kernels.block_transfer.layouts import LAYOUTS, PagedLayers, paged_layers
from kvproof.kernels.block_transfer.torch_reference import copy_blocks, copy_tokens
from kvproof.kernels.source import Source, poison
from kvproof.kernels.spec import (
    EXACT,
    Arguments,
    Case,
    Cost,
    Entry,
    Kernel,
    Launch,
    Problem,
    Value,
)

INDEXER_SCALES = 4


class Shape(NamedTuple):
    """Numbers of one cell, and what follows from them, in bytes."""

    layout: str
    heads: int
    head_bytes: int
    page: int
    layers: int
    objects: int
    tokens: int
    skip: int
    holes: int
    shift: int
    pad: int

    @property
    def kv(self) -> int:
        """Planes of a layer."""
        return 2 if "kv" in LAYOUTS[self.layout].dims else 1

    @property
    def blocks(self) -> int:
        """Blocks of an object."""
        return -(-self.tokens // self.page)

    @property
    def pages(self) -> int:
        """Pages of the pool: the null page, those in use and as many unused ones."""
        return 2 * self.objects * self.blocks + 1

    @property
    def row(self) -> int:
        """One token in one plane."""
        return self.heads * self.head_bytes

    @property
    def page_stride(self) -> int:
        """From one page to the next."""
        planes = self.kv if self.layout.startswith("page-kv") else 1
        return planes * self.page * self.row + self.pad

    @property
    def layer_bytes(self) -> int:
        """One layer of the pool."""
        planes = self.kv if self.layout.startswith("kv") else 1
        return self.shift + planes * self.pages * self.page_stride

    @property
    def object_shape(self) -> tuple[int, ...]:
        """Dimensions of one object."""
        return (self.kv, self.layers, self.tokens, self.row)


def shape_of_case(case: Case) -> Shape:
    """The numbers of a cell."""
    return Shape(**{name: case[name] for name in Shape._fields})  # type: ignore[arg-type]  # a cell holds values of these types


def layers_of(case: Case, pool: torch.Tensor) -> list[torch.Tensor]:
    """Each layer of the pool as a view in the dimensions of its layout."""
    shape = shape_of_case(case)
    sizes = {
        "kv": shape.kv,
        "pages": shape.pages,
        "page": shape.page,
        "heads": shape.heads,
        "bytes": shape.head_bytes if "heads" in LAYOUTS[shape.layout].dims else shape.row,
    }
    strides = {}
    step = 1
    for dim in reversed(LAYOUTS[shape.layout].dims):
        strides[dim] = shape.page_stride if dim == "pages" else step
        step = shape.page_stride * sizes[dim] if dim == "pages" else step * sizes[dim]
    dims = LAYOUTS[shape.layout].dims
    size, stride = [sizes[dim] for dim in dims], [strides[dim] for dim in dims]
    return [layer[shape.shift :].as_strided(size, stride) for layer in pool]


def objects_of(case: Case, objects: torch.Tensor) -> torch.Tensor:
    """The objects as a view [objects, kv, layers, tokens, row bytes]."""
    shape = shape_of_case(case)
    return objects[:, : objects.shape[1] - shape.pad].unflatten(1, shape.object_shape)


def paged_of(case: Case, pool: torch.Tensor) -> PagedLayers:
    """The layers of a pool, described."""
    return paged_layers(
        layers_of(case, pool), str(case["layout"]), scale_bytes=INDEXER_SCALES
    )


def make(case: Case, source: Source) -> Problem:
    """Random bytes on the side that is read, poison everywhere else."""
    shape = shape_of_case(case)
    used = shape.objects * shape.blocks
    ids = 1 + source.permutation(shape.pages - 1)[:used]
    ids[torch.randperm(used)[: shape.holes]] = 0
    size = torch.Size(shape.object_shape).numel() + shape.pad
    arguments: Arguments = {
        "direction": case["direction"],
        "layout": case["layout"],
        "pool": source.output((shape.layers, shape.layer_bytes), torch.uint8),
        "block_ids": source.put(ids.view(shape.objects, shape.blocks)),
        "objects": source.output((shape.objects, size), torch.uint8),
        "skip": shape.skip,
    }
    if case["direction"] == "gather":
        _fill_pages(case, arguments, source)
        return Problem(arguments, ("objects",))
    arguments["objects"].copy_(source.bytes((shape.objects, size)))
    return Problem(arguments, ("pool",))


def _fill_pages(case: Case, arguments: Arguments, source: Source) -> None:
    """Random bytes in the tokens that are read; the rest of their pages stays poison."""
    content = source.bytes(tuple(arguments["objects"].shape))
    paged = paged_of(case, arguments["pool"])
    copy_blocks(
        "scatter", paged, arguments["block_ids"], objects_of(case, content),
        skip_tokens=arguments["skip"],
    )  # fmt: skip


def reference(case: Case, arguments: Arguments) -> dict[str, torch.Tensor]:
    """Every token copied by itself."""
    output = "objects" if arguments["direction"] == "gather" else "pool"
    mine = {**arguments, output: arguments[output].clone()}
    copy_tokens(
        arguments["direction"], paged_of(case, mine["pool"]), mine["block_ids"],
        objects_of(case, mine["objects"]), skip_tokens=arguments["skip"],
    )  # fmt: skip
    return {output: mine[output]}


def cost(case: Case, arguments: Arguments) -> Cost:
    """Every byte that is moved, once in and once out, and the ids."""
    shape = shape_of_case(case)
    starts = torch.arange(shape.blocks) * shape.page
    begin = starts + torch.arange(shape.objects)[:, None] * shape.tokens
    end = begin + (shape.tokens - starts).clamp(max=shape.page)
    moved = (end - begin.clamp(min=shape.skip)).clamp(min=0)
    tokens = int(moved[arguments["block_ids"].cpu() > 0].sum())
    size = tokens * shape.row * shape.kv * shape.layers
    return Cost(read=size + arguments["block_ids"].numel() * 4, write=size)


def _prepare_ours(case: Case, arguments: Arguments) -> Launch:
    paged = paged_of(case, arguments["pool"])
    objects = objects_of(case, arguments["objects"])
    ids, skip = arguments["block_ids"], arguments["skip"]
    check(paged, ids, objects, skip_tokens=skip, check_ids=True)
    if not ids.is_cuda:
        function = gather if arguments["direction"] == "gather" else scatter
        return lambda: function(paged, ids, objects, skip_tokens=skip)
    return lambda: launch(arguments["direction"], paged, ids, objects, skip_tokens=skip)


def _prepare_torch(case: Case, arguments: Arguments) -> Launch:
    """One `index_select` or `index_copy_` over all layers, in the widest integers of a block."""
    shape = shape_of_case(case)
    planes, block = shape.layers * shape.kv, shape.page * shape.row
    wide = next(kind for kind in _INTEGERS if block % kind.itemsize == 0)
    pool = arguments["pool"].view(wide).view(planes, shape.pages, -1)
    ids = arguments["block_ids"].long()
    flat = arguments["objects"].view(wide).view(shape.objects, shape.kv, shape.layers, shape.blocks, -1)
    objects = flat.permute(2, 1, 0, 3, 4)
    if arguments["direction"] == "gather":
        def select() -> None:
            found = pool.index_select(1, ids.view(-1))
            objects.copy_(found.view(objects.shape))
        return select
    return lambda: _insert(pool, ids.view(-1), objects, planes)


def _insert(
    pool: torch.Tensor, ids: torch.Tensor, objects: torch.Tensor, planes: int
) -> None:
    pool.index_copy_(1, ids, objects.reshape(planes, ids.numel(), -1))


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)
