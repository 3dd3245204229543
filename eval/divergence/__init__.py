"""Divergence per token: the same request from a hit and recomputed.

In: servers that give log-probabilities. Out: records of differences, tables, a verdict.
Imports `benchmark`, `run`, `http` and the reports' values.
"""
