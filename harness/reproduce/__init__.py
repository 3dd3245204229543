"""A failure as an op log and as a plain script.

In: a history and its violation. Out: JSON, Python source.
Imports `oracle` and `contract`.
"""
