"""The sglang adapter: `TargetConfig` to `Target`. Its engine is imported in functions only."""

from kvproof.harness.adapters.sglang.target import make_target

__all__ = ["make_target"]
