"""Paged prefill attention: chunks of new tokens over the cached context of their requests (K4).

In: queries, pages, tables, lengths. Out: attention [tokens, heads, size].
Imports the kernels' common modules.
"""
