"""Cells of the block transfer, and the tensors of a cell."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import torch

from kvproof.kernels.block_transfer.layouts import LAYOUTS, PagedLayers, paged_layers
from kvproof.kernels.spec import Case, Value

SCALE_BYTES = 4
"""Scale bytes in a row of the indexer."""

WIDTHS = (256, 132, 66, 33)
DIRECTIONS = ("gather", "scatter")


class Shape(NamedTuple):
    """The numbers of one cell; derived sizes are in bytes."""

    direction: str
    layout: str
    head_bytes: int
    heads: int
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
        return 2 if "kv" in self.dims else 1

    @property
    def dims(self) -> tuple[str, ...]:
        """Dimensions of a layer."""
        return LAYOUTS[self.layout].dims

    @property
    def blocks(self) -> int:
        """Blocks of an object."""
        return -(-self.tokens // self.page)

    @property
    def pages(self) -> int:
        """Pages of the pool: the null page, the used ones and as many unused ones."""
        return 2 * self.objects * self.blocks + 1

    @property
    def row(self) -> int:
        """One token in one plane."""
        return self.heads * self.head_bytes

    @property
    def page_stride(self) -> int:
        """Bytes from one page to the next."""
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

    @property
    def object_stride(self) -> int:
        """Bytes from one object to the next."""
        return math.prod(self.object_shape) + self.pad


def shape_of_case(case: Case) -> Shape:
    """The numbers of a cell."""
    numbers: dict[str, Value] = dict(case)
    return Shape(**numbers)  # type: ignore[arg-type]  # a cell holds values of these types


def cell(
    *,
    direction: str = "gather",
    layout: str = "kv-nhd",
    head_bytes: int = 256,
    heads: int = 8,
    page: int = 16,
    layers: int = 32,
    objects: int = 4,
    tokens: int = 256,
    skip: int = 0,
    holes: int = 0,
    shift: int = 0,
    pad: int = 0,
) -> Case:
    """A cell; rows of latent and indexer pages have one head."""
    heads = heads if "heads" in LAYOUTS[layout].dims else 1
    return Shape(
        direction, layout, head_bytes, heads, page, layers, objects, tokens, skip, holes, shift, pad
    )._asdict()


def layers_of(case: Case, pool: torch.Tensor) -> list[torch.Tensor]:
    """Each layer of the pool as a view in the dimensions of its layout."""
    shape = shape_of_case(case)
    last = shape.head_bytes if "heads" in shape.dims else shape.row
    sizes = {**shape._asdict(), "kv": shape.kv, "pages": shape.pages, "bytes": last}
    strides = {}
    step = 1
    for dim in reversed(shape.dims):
        strides[dim] = shape.page_stride if dim == "pages" else step
        step = sizes[dim] * strides[dim]
    size, stride = [sizes[dim] for dim in shape.dims], [strides[dim] for dim in shape.dims]
    return [layer[shape.shift :].as_strided(size, stride) for layer in pool]


def paged_of(case: Case, pool: torch.Tensor) -> PagedLayers:
    """The layers of a pool, described."""
    return paged_layers(layers_of(case, pool), str(case["layout"]), scale_bytes=SCALE_BYTES)


def objects_of(case: Case, objects: torch.Tensor) -> torch.Tensor:
    """The objects as a view [objects, kv, layers, tokens, row bytes]."""
    shape = shape_of_case(case)
    return objects[:, : shape.object_stride - shape.pad].unflatten(1, shape.object_shape)


def cpu() -> list[Case]:
    """Every layout, width and direction; then special cases, in one layout of each order."""
    small = {"heads": 2, "page": 4, "layers": 2, "objects": 2}
    cells = [
        cell(**small, layout=layout, head_bytes=width, tokens=8, direction=direction)
        for layout, width, direction in product(LAYOUTS, WIDTHS, DIRECTIONS)
    ]
    small["layers"] = 1
    special = [
        *({"tokens": 8, "skip": skip} for skip in (1, 3, 4, 5, 13, 16)),
        *({"tokens": tokens} for tokens in (1, 3, 5)),
        {"tokens": 7, "skip": 6},
        *({"tokens": 8, "holes": holes} for holes in (1, 4)),
        {"tokens": 6, "skip": 1, "holes": 1},
    ]
    cells += [
        cell(**small, **found, layout=layout, head_bytes=66, direction=direction)
        for found, layout, direction in product(special, _ORDERS, DIRECTIONS)
    ]
    cells += [
        cell(**small, tokens=8, shift=shift, pad=pad, layout=layout, direction=direction)
        for shift, pad in ((5, 0), (8, 0), (1, 1), (2, 6), (4, 12), (8, 24), (0, 16))
        for layout, direction in product(_ORDERS[:2], DIRECTIONS)
    ]
    return cells + [
        cell(heads=1, page=page, layers=1, objects=1, tokens=tokens, layout=layout, head_bytes=33,
             direction=direction)
        for page, tokens in ((1, 3), (16, 17), (64, 64), (256, 255))
        for layout, direction in product(_ORDERS[:2], DIRECTIONS)
    ]  # fmt: skip


def gpu() -> list[Case]:
    """Layouts, pages, widths and heads of real models."""
    cells = [
        cell(layout=layout, head_bytes=width, page=page, direction=direction)
        for layout in ("kv-nhd", "kv-hnd")
        for page, width in product((16, 32, 64, 128, 256), (*WIDTHS, 64, 128, 512))
        for direction in DIRECTIONS
    ]
    cells += [
        cell(layout=layout, head_bytes=width, page=page, direction=direction)
        for layout, width in (("indexer", 132), ("latent", 576), ("latent", 1152), ("latent", 656))
        for page, direction in product((16, 32, 64, 128, 256), DIRECTIONS)
    ]
    cells += [
        cell(layout=layout, head_bytes=width, direction=direction)
        for layout in ("nhd", "hnd", "page-kv-nhd", "page-kv-hnd")
        for width, direction in product(WIDTHS, DIRECTIONS)
    ]
    cells += [
        cell(heads=heads, direction=direction, layout=layout)
        for heads in (1, 2, 4, 16)
        for layout, direction in product(_ORDERS[:2], DIRECTIONS)
    ]
    return cells + [
        cell(**found, head_bytes=132, layout=layout, direction=direction)
        for found in ({"skip": 300}, {"holes": 16}, {"tokens": 250}, {"shift": 4, "pad": 4})
        for layout, direction in product(_ORDERS, DIRECTIONS)
    ]


def published() -> list[Case]:
    """32 layers, 1,024 tokens in four objects: the shapes of published figures."""
    shapes = [
        *(("kv-nhd", width) for width in WIDTHS),
        *(("kv-hnd", width) for width in WIDTHS[:3]),
        ("latent", 1152),
        ("indexer", 132),
    ]
    return [
        cell(layout=layout, head_bytes=width, page=page, direction=direction)
        for (layout, width), page, direction in product(shapes, (16, 64), DIRECTIONS)
    ]


def random_cells(count: int, *, seed: int = 0) -> list[Case]:
    """Seeded shapes: any layout, width, page, skip, holes and alignment."""
    draw = random.Random(seed)  # noqa: S311 - shapes, not secrets
    return [_drawn(draw) for _ in range(count)]


_ORDERS = ("kv-nhd", "kv-hnd", "indexer")
"""One layout for each order in a page."""


def _drawn(draw: random.Random) -> Case:
    tokens, objects = draw.randint(1, 300), draw.randint(1, 4)
    page = draw.choice((1, 2, 3, 8, 16, 32, 48, 64, 128, 256))
    used = -(-tokens // page) * objects
    return cell(
        direction=draw.choice(DIRECTIONS),
        layout=draw.choice(tuple(LAYOUTS)),
        head_bytes=draw.choice((draw.randint(5, 300), 2 * draw.randint(3, 150), *WIDTHS)),
        heads=draw.randint(1, 10),
        page=page,
        layers=draw.randint(1, 6),
        objects=objects,
        tokens=tokens,
        skip=draw.choice((0, draw.randint(0, tokens * objects))),
        holes=draw.choice((0, draw.randint(0, used))),
        shift=draw.choice((0, 0, draw.randint(0, 16))),
        pad=draw.choice((0, 0, draw.randint(0, 40))),
    )


SETS: dict[str, Callable[[], list[Case]]] = {
    "cpu": cpu,
    "gpu": gpu,
    "published": published,
    "random": lambda: random_cells(100),
}
