"""The lmcache adapter: `TargetConfig` to `Target`. Imports its engine inside functions only."""

from kvproof.harness.adapters.lmcache.target import make_target

__all__ = ["make_target"]
