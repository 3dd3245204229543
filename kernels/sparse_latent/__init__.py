"""Latent attention over chosen tokens of FP8 or bfloat16 rows, for decode and prefill.

`sparse_latent` runs it: in Triton on a GPU (or in Triton's interpreter), in torch elsewhere.
`pack` and `unpack` turn columns into FP8 rows and back; `workspace` makes what a launch needs
besides its arguments.

In: queries, pages of rows, indices. Out: attention [query tokens, heads, 512].
Imports the kernels' common modules and those of `latent` and `paged_decode`.
"""

from kvproof.kernels.sparse_latent.launch import Workspace, sparse_latent, workspace
from kvproof.kernels.sparse_latent.rows import pack, unpack

__all__ = ["Workspace", "pack", "sparse_latent", "unpack", "workspace"]
