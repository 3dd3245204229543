"""Expansion of block tables from blocks to kernel blocks (K3).

In: tables [batch, width] of int32. Out: tables [batch, width * ratio].
Imports the kernels' common modules.
"""

from kvproof.kernels.block_expand.launch import block_expand
from kvproof.kernels.block_expand.table import ExpandedTable

__all__ = ["ExpandedTable", "block_expand"]
