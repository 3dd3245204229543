"""Single pages as flat bytes, with their place in an object: the units of a copy engine (G4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from kvproof.kernels.block_transfer.layouts import LAYOUTS, PagedLayers


def page_bytes(
    paged: PagedLayers, ids: Sequence[int], tokens: int, skip: int
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the first byte in the object, and flat uint8 of one page, in every plane.

    Pages hold whole rows one after the other. Of the first ones the tokens before `skip` are left
    out; page 0 is never touched.
    """
    size = tokens * paged.row_bytes
    for position, page in enumerate(ids):
        low = max(0, skip - position * paged.page)
        if not page or low >= paged.page:
            continue
        at = (position * paged.page + low) * paged.row_bytes
        for plane, part in enumerate(_planes(paged)):
            flat = part[page].view(-1).view(torch.uint8)
            yield plane * size + at, flat[low * paged.row_bytes :]


def _planes(paged: PagedLayers) -> Iterator[torch.Tensor]:
    """K or V of each layer, [pages, ...], in the order of an object."""
    dims = LAYOUTS[paged.layout].dims
    for plane in range(paged.kv):
        for layer in paged.layers:
            yield layer.select(dims.index("kv"), plane) if "kv" in dims else layer
