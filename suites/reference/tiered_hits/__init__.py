"""Component suite `tiered`: tiers below a small pool, against one large pool (C8).

In: histories. Out: verdicts. Imports `framework`, `reference.tiers` and the files of `tiers`.
"""
