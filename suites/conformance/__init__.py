"""The conformance suite: judges the cache manager of any target.

In: a target's handle. Out: verdicts for each property of the contract. Imports `framework` and the
harness.
"""
