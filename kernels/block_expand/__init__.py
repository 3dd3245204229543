"""Expansion of block tables: a manager's blocks become the blocks that kernels address."""

from kvproof.kernels.block_expand.launch import block_expand
from kvproof.kernels.block_expand.table import ExpandedTable

__all__ = ["ExpandedTable", "block_expand"]
