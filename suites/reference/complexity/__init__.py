"""Component suite `cost`: memory of the index (T4), and the cost of matches and evictions (T5).

In: histories that grow. Out: verdicts. Imports `framework` and `reference.cache`.
"""
