"""Merge of attention over parts of a context, each with its log-sum-exp, into that over all.

In: results of the parts and their logarithms. Out: the result [tokens, heads, size].
Imports the kernels' common modules.
"""

from kvproof.kernels.part_merge.launch import merge_parts

__all__ = ["merge_parts"]
