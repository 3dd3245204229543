"""One package for each engine.

In: a `TargetConfig`. Out: a `Target`.
Each imports its engine inside functions, the contract, and nothing else of the harness.
"""
