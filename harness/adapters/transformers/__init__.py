"""The transformers adapter: `TargetConfig` to `Target`. Imports its engine inside functions only."""

from kvproof.harness.adapters.transformers.target import make_target

__all__ = ["make_target"]
