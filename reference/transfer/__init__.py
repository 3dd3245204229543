"""Bytes between pages and flat chunks, for layers of any geometry (G1-G6, G9, G10, K5).

`layer_groups` and `chunk_layout` describe the layout, `grouped` moves the bytes. Needs torch.

In: pages and lists of blocks. Out: chunks in host memory, or the other way round. Imports `core`,
`planner` and the kernels.
"""
