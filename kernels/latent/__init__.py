"""Latent attention for Hopper: what decode over whole contexts and over chosen tokens share.

`launch` says which problems the kernel takes and runs it; the kernel itself is in Gluon, Triton's
lower level, and cannot be interpreted. `paged_decode` comes here by itself.
"""
