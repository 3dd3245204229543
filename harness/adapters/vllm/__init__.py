"""The vllm adapter: `TargetConfig` to `Target`. Imports its engine inside functions only."""

from kvproof.harness.adapters.vllm.target import make_target

__all__ = ["make_target"]
