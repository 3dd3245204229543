"""Decode over contexts that are divided among ranks, interleaved token by token (Q4).

In: the same queries on every rank, each rank's own pages. Out: the whole answer on every rank.
Imports `paged_decode` and `part_merge`.
"""

from kvproof.kernels.context_parallel.launch import context_parallel_decode
from kvproof.kernels.context_parallel.ownership import owned_lengths, owned_tokens

__all__ = ["context_parallel_decode", "owned_lengths", "owned_tokens"]
