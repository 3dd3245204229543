"""OpenCompass: its environment, and our components inside it.

In: an evaluation's settings. Out: the samples' records.
Imports `run`, `benchmark`, `long_context` and `http`.
"""
