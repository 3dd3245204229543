"""Copies recurrent states between rows of many pools, by lists of rows, in one launch."""

from kvproof.kernels.state_copy.launch import StatePools, copy_rows, state_pools

__all__ = ["StatePools", "copy_rows", "state_pools"]
