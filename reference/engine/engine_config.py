"""Options of section O for an engine, in addition to those of its cache."""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.reference.core.cache_config import CacheConfig, ConfigError
from kvproof.reference.tiers.config import DiskTierOption, Size, check_tiers


@dataclass(frozen=True)
class EngineConfig:
    """Configuration of an engine. Raises ConfigError."""

    cache: CacheConfig
    """Its `max_requests` also limits the running requests."""
    max_batch_tokens: int = 8192
    """Tokens that a step computes at most, hits not counted; a media span is never split (M3)."""
    steps_in_flight: int = 1
    """Steps that may be launched and not ended (B6)."""
    num_drafts: int = 0
    """Tokens guessed ahead for each request (X5)."""
    poison_freed: bool = False
    """Destroy the content of free blocks after each step, to find requests that still read them."""
    host_tier: Size = 0
    """Host memory for evicted blocks: bytes, or `4GiB`; 0: none."""
    disk_tier: DiskTierOption = None
    """A folder and its size, for what host memory evicts; None: none."""
    weights: str = ""
    """Names the weights: objects on a disk outlive the process and are found by this name (H6)."""

    def __post_init__(self) -> None:
        _at_least("max_batch_tokens", self.max_batch_tokens, least=1, example=8192)
        _at_least("steps_in_flight", self.steps_in_flight, least=1, example=2)
        _at_least("num_drafts", self.num_drafts, least=0, example=3)
        check_tiers(
            self.host_tier,
            self.disk_tier,
            weights=self.weights,
            caching=self.cache.enable_prefix_caching,
            algorithm=self.cache.hash_algorithm,
        )
        if not isinstance(self.poison_freed, bool):
            raise ConfigError(
                f"poison_freed {self.poison_freed!r} must be true or false, for example False"
            )


def _at_least(name: str, value: object, *, least: int, example: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(
            f"{name} {value!r} must be a whole number, at least {least}, for example {example}"
        )
