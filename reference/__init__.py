"""The reference engine: the oracle, readable first.

In: requests. Out: tokens, block tables, counters.
Imports nothing of kvproof but the kernels; the control plane needs numpy and msgspec, never torch.
"""
