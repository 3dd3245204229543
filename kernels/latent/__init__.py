"""Latent attention for Hopper: what decode over whole contexts and over chosen tokens share.

`launch` knows which problems the kernel takes and runs it; the kernel itself is in Gluon, Triton's
lower level, and cannot be interpreted. `paged_decode` and `sparse_latent` come here by themselves.

In: queries, latent pages, tables or indices. Out: attention [requests, query tokens, heads, 512].
Imports the kernels' common modules.
"""
