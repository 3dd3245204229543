"""Objects by content, wherever they lie (H6, G7).

`object_store` is what all stores have in common; `remote_store` is one in Redis or Valkey.

In: keys and bytes. Out: the same bytes, or a miss. Imports `core`.
"""
