"""Filling pages of a latent cache with rows of 656 bytes, quantised on write (K2).

In: latent vectors, rotary keys, slots. Out: pages. Imports `kv_fill`, `sparse_latent` and the
kernels' common modules.
"""

from kvproof.kernels.latent_fill.launch import latent_fill

__all__ = ["latent_fill"]
