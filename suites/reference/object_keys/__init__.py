"""Component suite `keys`: inputs of block keys, and equal keys in every process (H1 to H7).

In: identities. Out: verdicts. Imports `framework` and `reference.core`.
"""
