"""The adapter of SGLang's own Scheduler over our shadow device, for `sglang-engine` targets.

In: an `EngineConfig`. Out: a `WholeEngine`, from `engine.start`; `target.make_target` gives the
target and its profile. Imports `harness.whole_engine` and the contract; SGLang inside functions.
"""

from kvproof.harness.adapters.sglang_engine.target import make_target

__all__ = ["make_target"]
