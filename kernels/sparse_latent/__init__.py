"""Latent attention over chosen tokens of FP8 rows, for decode and prefill.

`sparse_latent` runs it: in Triton on a GPU (or in Triton's interpreter), in torch elsewhere.
`rows` packs and unpacks the rows; `workspace` makes what a launch needs beside its arguments.
"""

from kvproof.kernels.sparse_latent.launch import Workspace, sparse_latent, workspace
from kvproof.kernels.sparse_latent.rows import pack, unpack

__all__ = ["Workspace", "pack", "sparse_latent", "unpack", "workspace"]
