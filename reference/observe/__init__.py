"""Metrics and explanations of a cache manager.

In: a running manager. Out: Prometheus counters, the reason for each hit length.
Imports `core`, `prefix`, `states` and `cache`.
"""
