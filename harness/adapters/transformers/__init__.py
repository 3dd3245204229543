"""The transformers adapter: `TargetConfig` to `Target`. The engine is imported late."""

from kvproof.harness.adapters.transformers.target import make_target

__all__ = ["make_target"]
