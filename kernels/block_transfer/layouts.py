"""Memory layouts of pages, and layers that share one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from kvproof.kernels.checks import require

TOKENS, HEADS, SPLIT = 0, 1, 2
"""Order in a page: rows of tokens, heads of all tokens, values of all tokens then scales."""


class Layout(NamedTuple):
    """Dimensions of a layer's tensor, outermost first, and the order in a page."""

    dims: tuple[str, ...]
    order: int


LAYOUTS = {
    "nhd": Layout(("pages", "page", "heads", "bytes"), TOKENS),
    "hnd": Layout(("pages", "heads", "page", "bytes"), HEADS),
    "kv-nhd": Layout(("kv", "pages", "page", "heads", "bytes"), TOKENS),
    "kv-hnd": Layout(("kv", "pages", "heads", "page", "bytes"), HEADS),
    "page-kv-nhd": Layout(("pages", "kv", "page", "heads", "bytes"), TOKENS),
    "page-kv-hnd": Layout(("pages", "kv", "heads", "page", "bytes"), HEADS),
    "latent": Layout(("pages", "page", "bytes"), TOKENS),
    "indexer": Layout(("pages", "page", "bytes"), SPLIT),
}
"""`indexer`: a page holds the values of all its tokens, then the scales of all its tokens; its
last dimension counts both."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PagedLayers:
    """Layers of one geometry (G1), with the table of their addresses on the device (G4).

    A plane is K or V of a layer; `table` is int64 [kv * layers], the address of page 0 of each
    plane in the order of an object. Sizes and strides are in bytes; strides may be padded, a block
    itself is dense.
    """

    layers: tuple[torch.Tensor, ...]
    layout: str
    pages: int
    page: int
    kv: int
    heads: int
    head_bytes: int
    scale_bytes: int
    page_stride: int
    alignment: int
    """The power of two, at most 16, that divides the address of every block."""
    table: torch.Tensor
    units: dict[int, list[Any]] = field(default_factory=dict, init=False, repr=False)
    """Cache of `host_memory`: arrays of the planes, by the size of a unit."""
    plans: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    """Cache of `host`: the plan of each geometry of objects."""

    @property
    def order(self) -> int:
        """Order inside of a page."""
        return LAYOUTS[self.layout].order

    @property
    def row_bytes(self) -> int:
        """Bytes of one token in one plane: all heads of K or of V, or values and scales."""
        return self.heads * self.head_bytes + self.scale_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one page in one plane."""
        return self.page * self.row_bytes

    @property
    def planes(self) -> int:
        """K and V of all layers."""
        return self.kv * len(self.layers)


def paged_layers(
    layers: Sequence[torch.Tensor], layout: str, *, scale_bytes: int = 4
) -> PagedLayers:
    """Describe layers by their common geometry.

    Args:
        layers: One tensor per layer, of the dimensions of `LAYOUTS[layout]`, of any dtype.
        layout: A key of `LAYOUTS`.
        scale_bytes: Of `indexer` pages, how many bytes of a token's row are scales.

    Raises:
        ArgumentError: Layers differ in shape, dtype, strides or device, or a block has gaps.

    """
    require(layout in LAYOUTS, f"layout is {layout!r}, expected one of {', '.join(LAYOUTS)}")
    require(len(layers) > 0, "layers is empty, expected at least one tensor")
    _check_equal(layers)
    dims, order = LAYOUTS[layout]
    first = layers[0]
    require(
        first.dim() == len(dims),
        f"layers have shape {tuple(first.shape)}, expected [{', '.join(dims)}] in layout {layout}",
    )
    item = first.element_size()
    size = dict(zip(dims, first.shape, strict=True))
    stride = {name: step * item for name, step in zip(dims, first.stride(), strict=True)}
    _check_dense(layout, size, stride, item)
    scales = scale_bytes if order == SPLIT else 0
    row = size["bytes"] * item
    addresses = [
        layer.data_ptr() + plane * stride.get("kv", 0)
        for plane in range(size.get("kv", 1))
        for layer in layers
    ]
    require(0 <= scales < row, f"scale_bytes is {scales}, a row has {row} bytes")
    return PagedLayers(
        layers=tuple(layers),
        layout=layout,
        pages=size["pages"],
        page=size["page"],
        kv=size.get("kv", 1),
        heads=size.get("heads", 1),
        head_bytes=row - scales,
        scale_bytes=scales,
        page_stride=stride["pages"],
        alignment=math.gcd(16, stride["pages"], *addresses),
        table=torch.tensor(addresses, dtype=torch.int64, device=first.device),
    )


def _check_equal(layers: Sequence[torch.Tensor]) -> None:
    def key(layer: torch.Tensor) -> tuple[object, ...]:
        return tuple(layer.shape), layer.dtype, layer.stride(), layer.device

    for index, layer in enumerate(layers):
        require(
            key(layer) == key(layers[0]),
            f"layer {index} has shape, dtype, stride, device {key(layer)}, layer 0 has"
            f" {key(layers[0])}; layers of unequal geometry are transferred apart",
        )


def _check_dense(layout: str, size: dict[str, int], stride: dict[str, int], item: int) -> None:
    expected = item
    for name in reversed([dim for dim in LAYOUTS[layout].dims if dim not in ("kv", "pages")]):
        require(
            size[name] == 1 or stride[name] == expected,
            f"dimension {name} of a layer has a stride of {stride[name]} bytes, expected"
            f" {expected}: a block must be dense",
        )
        expected *= size[name]
