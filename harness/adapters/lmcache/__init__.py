"""The lmcache adapter: `TargetConfig` to `Target`. Its engine is imported in functions only."""

from kvproof.harness.adapters.lmcache.target import make_target

__all__ = ["make_target"]
