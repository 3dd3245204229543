"""Grouped block transfer: pages of all layers to and from flat objects, in one launch."""

from kvproof.kernels.block_transfer.launch import gather, scatter
from kvproof.kernels.block_transfer.layouts import LAYOUTS, PagedLayers, paged_layers

__all__ = ["LAYOUTS", "PagedLayers", "gather", "paged_layers", "scatter"]
