"""Paired comparison of configurations.

In: records of answers. Out: tables with error rates, a verdict.
Imports `run`, `benchmark` and the reports' values.
"""
