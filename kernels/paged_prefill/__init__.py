"""Paged prefill attention: chunks of new tokens over the cached context of their requests (K4).

In: queries, pages, tables, lengths. Out: attention [tokens, heads, size].
Imports the kernels' common modules.
"""

from kvproof.kernels.paged_prefill.launch import paged_prefill, prefill_work
from kvproof.kernels.paged_prefill.tiling import Plan
from kvproof.kernels.paged_prefill.trees import tree_masks
from kvproof.kernels.paged_prefill.work import Work

__all__ = ["Plan", "Work", "paged_prefill", "prefill_work", "tree_masks"]
