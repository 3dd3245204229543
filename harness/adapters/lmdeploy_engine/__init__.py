"""The adapter of LMDeploy's own Engine over our shadow device, for `lmdeploy-engine` targets.

In: an `EngineConfig`. Out: a `WholeEngine`, from `engine.start`; `target.make_target` gives the
target and its profile. Imports `harness.whole_engine` and the contract; LMDeploy inside functions.
"""

from kvproof.harness.adapters.lmdeploy_engine.target import make_target

__all__ = ["make_target"]
