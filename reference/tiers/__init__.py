"""Host memory and disk below the pool, for evicted blocks (C8, G7, H6).

`tiers` handles evictions and prepares admissions, `tiered` wraps the manager,
`host_tier` and `disk_tier` keep objects under the keys of `object_key`.

In: evicted blocks and their keys. Out: loaded blocks, or a miss. Imports `core`, `cache`, `stores`
and `transfer`.
"""
