"""The indexer of sparse attention: it scores cached keys and chooses tokens for each query token.

`indexer` runs it: in Triton on a GPU (or in Triton's interpreter), in torch elsewhere. `fill`
writes keys into its cache; `pack` and `unpack` turn keys into pages and back; `workspace` makes the
tensors that a launch needs besides its arguments. The design is that of DeepSeek-V3.2 (2025).

In: FP8 queries, weights of heads, pages of FP8 keys with scales, tables, lengths. Out: positions or
slots of the chosen tokens. Imports the kernels' common modules.
"""

from kvproof.kernels.indexer.fill import fill
from kvproof.kernels.indexer.keys import pack, unpack
from kvproof.kernels.indexer.launch import Workspace, indexer, workspace

__all__ = ["Workspace", "fill", "indexer", "pack", "unpack", "workspace"]
