"""Questions about finished runs: compare, history, merge, thresholds, baselines.

In: run directories. Out: differences with a stated error rate.
Imports `records` and statistics.
"""
