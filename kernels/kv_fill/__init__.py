"""Filling pages with the keys and values of new tokens (K2).

In: keys and values [tokens, heads, size], slots. Out: pages.
Imports the kernels' common modules.
"""

from kvproof.kernels.kv_fill.launch import kv_fill

__all__ = ["kv_fill"]
