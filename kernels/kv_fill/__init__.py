"""Filling pages: the keys and values of new tokens go where the block table or slots say."""

from kvproof.kernels.kv_fill.launch import kv_fill

__all__ = ["kv_fill"]
