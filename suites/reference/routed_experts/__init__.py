"""Component suite `experts`: the routed experts of every token (R1 to R4).

In: histories. Out: verdicts. Imports `framework` and `reference.cache`.
"""
