"""Host memory and disk below the pool: what is evicted comes back (C8, G7, H6).

`tiers` hears of evictions and prepares admissions, `tiered` stands in front of the manager,
`host_tier` and `disk_tier` keep objects under the keys of `object_key`.

In: evicted blocks and their keys. Out: loaded blocks, or a miss. Imports `core`, `cache`, `stores`
and `transfer`.
"""
