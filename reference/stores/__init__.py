"""Objects by content, in any store (H6, G7).

`object_store` is the interface of all stores; `remote_store` is one in Redis or Valkey.

In: keys and bytes. Out: the same bytes, or a miss. Imports `core`.
"""
