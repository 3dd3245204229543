"""Component suite `settings`: refusals before there is a cache (K1, A3).

In: settings. Out: verdicts. Imports `framework`, `reference.core` and `reference.planner`.
"""
