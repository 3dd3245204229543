"""Component suite `metrics`: counters and logs against the operations (V1, V2).

In: histories. Out: verdicts. Imports `framework` and `reference.observe`.
"""
