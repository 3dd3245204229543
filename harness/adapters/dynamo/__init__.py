"""The adapter of Dynamo's router. In: a `TargetConfig`. Out: a `Target`.

Imports the contract; its engine in functions only.
"""

from kvproof.harness.adapters.dynamo.target import make_target

__all__ = ["make_target"]
