"""The adapter of LMCache. In: a `TargetConfig`. Out: a `Target`.

Imports the contract; its engine in functions only.
"""

from kvproof.harness.adapters.lmcache.target import make_target

__all__ = ["make_target"]
