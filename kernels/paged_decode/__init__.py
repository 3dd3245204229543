"""Paged decode attention: 1 to 32 query tokens a request, read through a block table.

`paged_decode` runs it: in Triton on a GPU (or in Triton's interpreter), in torch elsewhere.
`workspace` makes its further tensors, once for many launches.

In: queries, pages, tables, lengths. Out: attention [tokens, heads, size]. Imports the kernels'
common modules.
"""

from kvproof.kernels.paged_decode.launch import paged_decode
from kvproof.kernels.paged_decode.workspace import Workspace, workspace

__all__ = ["Workspace", "paged_decode", "workspace"]
