"""Public operations on paged memory, on any device.

On a GPU they are Triton kernels, elsewhere plain torch operations on the same arguments, with the
same results within the tolerance of each kernel's sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch

from kvproof.kernels.backend import interpreted, runs_triton
from kvproof.kernels.block_expand import ExpandedTable, block_expand
from kvproof.kernels.block_transfer import gather as gather_blocks
from kvproof.kernels.block_transfer import scatter as scatter_blocks
from kvproof.kernels.block_transfer import transfer_from_host, transfer_to_host
from kvproof.kernels.indexer import fill as fill_indexer
from kvproof.kernels.indexer import indexer
from kvproof.kernels.kv_fill import kv_fill
from kvproof.kernels.latent_fill import latent_fill
from kvproof.kernels.paged_decode import paged_decode
from kvproof.kernels.paged_prefill import paged_prefill, tree_masks
from kvproof.kernels.part_merge import merge_parts
from kvproof.kernels.shared_prefix import shared_prefix_decode
from kvproof.kernels.sparse_latent import sparse_latent
from kvproof.kernels.state_copy import StatePools, state_pools
from kvproof.kernels.state_copy import copy_rows as copy_states
from kvproof.kernels.state_step import gated_delta_step, mamba2_step

__all__ = [
    "OPERATIONS",
    "Backend",
    "ExpandedTable",
    "StatePools",
    "backend_of",
    "block_expand",
    "copy_states",
    "fill_indexer",
    "gated_delta_step",
    "gather_blocks",
    "indexer",
    "kv_fill",
    "latent_fill",
    "mamba2_step",
    "merge_parts",
    "paged_decode",
    "paged_prefill",
    "scatter_blocks",
    "shared_prefix_decode",
    "sparse_latent",
    "state_pools",
    "transfer_from_host",
    "transfer_to_host",
    "tree_masks",
]

Backend = Literal["triton", "interpreter", "torch"]

OPERATIONS: Mapping[str, tuple[Callable[..., object], ...]] = {
    "paged_decode": (paged_decode,),
    "paged_prefill": (paged_prefill,),
    "tree_attention": (paged_prefill, tree_masks),
    "shared_prefix": (shared_prefix_decode,),
    "part_merge": (merge_parts,),
    "kv_fill": (kv_fill,),
    "block_expand": (block_expand,),
    "block_transfer": (gather_blocks, scatter_blocks),
    "host_transfer": (transfer_to_host, transfer_from_host),
    "state_copy": (copy_states,),
    "state_step": (gated_delta_step, mamba2_step),
    "sparse_latent": (sparse_latent,),
    "latent_fill": (latent_fill,),
    "indexer": (indexer,),
    "indexer_fill": (fill_indexer,),
}
"""Name of a kernel -> its operations."""


def backend_of(tensor: torch.Tensor) -> Backend:
    """Name of the backend for this tensor."""
    if not runs_triton(tensor):
        return "torch"
    return "interpreter" if interpreted() else "triton"
