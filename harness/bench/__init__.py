"""Benchmarks of cache managers over workloads and traces.

In: targets, a workload. Out: rates, ratios with intervals, the optimal hit rate.
Imports `isolation`, `oracle`, `records`.
"""
