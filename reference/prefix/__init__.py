"""The index of reusable prefixes and the data on its nodes.

In: hashed ranges of tokens with their blocks. Out: matches and evictable blocks.
Imports `core`.
"""
