"""Grouped block transfer: pages of all layers to and from flat objects, in one launch.

In: pages of all layers, ids of blocks. Out: flat objects, or the other way round. Imports the
kernels' common modules.
"""

from kvproof.kernels.block_transfer.host import Staging, transfer_from_host, transfer_to_host
from kvproof.kernels.block_transfer.launch import gather, scatter
from kvproof.kernels.block_transfer.layouts import LAYOUTS, PagedLayers, paged_layers

__all__ = [
    "LAYOUTS",
    "PagedLayers",
    "Staging",
    "gather",
    "paged_layers",
    "scatter",
    "transfer_from_host",
    "transfer_to_host",
]
