"""The adapter of vLLM's own engine loop over our shadow device, for `vllm-engine` targets.

In: an `EngineConfig`. Out: a `WholeEngine`, from `engine.start`; `target.make_target` gives the
target and its profile. Imports `harness.whole_engine` and the contract; vLLM only in modules that
vLLM imports itself by entry point, and inside functions.
"""

from kvproof.harness.adapters.vllm_engine.target import make_target

__all__ = ["make_target"]
