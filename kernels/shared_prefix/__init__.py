"""Decode attention of requests that share the start of their contexts, read once for all of them.

In: queries, pages, tables of prefixes and requests. Out: attention [batch, tokens, heads, size].
Imports the kernels' common modules.
"""

from kvproof.kernels.shared_prefix.launch import prefix_work, shared_prefix_decode

__all__ = ["prefix_work", "shared_prefix_decode"]
