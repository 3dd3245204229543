"""Copies of recurrent states between slots of many pools in one launch (S3).

In: pools and lists of slots. Out: pools.
Imports the kernels' common modules.
"""

from kvproof.kernels.state_copy.launch import StatePools, copy_rows, state_pools

__all__ = ["StatePools", "copy_rows", "state_pools"]
