"""Component suite `tiers`: host memory and disk below the pool, and their keys (C8, G7, H6).

In: histories with damaged files. Out: verdicts. Imports `framework` and `reference.tiers`.
"""
