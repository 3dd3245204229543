"""The lmdeploy adapter: `TargetConfig` to `Target`. Its engine is imported in functions only."""

from kvproof.harness.adapters.lmdeploy.target import make_target

__all__ = ["make_target"]
