"""The adapter of sglang. In: a `TargetConfig`. Out: a `Target`, from `target.make_target`.

Imports the contract and `harness.errors`; its engine only inside functions.
"""

from kvproof.harness.adapters.sglang.target import make_target

__all__ = ["make_target"]
