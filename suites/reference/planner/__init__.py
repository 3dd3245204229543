"""Component suite `plan`: memory plans against their own arithmetic and a simulation (P1 to P9).

In: models and memory sizes. Out: verdicts. Imports `framework` and `reference.planner`.
"""
