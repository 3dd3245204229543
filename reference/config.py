"""Sizes and switches of the cache control plane, checked once."""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.reference.identity import HASH_ALGORITHMS


class ConfigError(ValueError):
    """A setting is not usable; the message gives the value, the rule and a legal example."""


@dataclass(frozen=True)
class CacheConfig:
    """Options of section O that concern blocks, identity and the prefix index.

    Sizes are tokens. Raises ConfigError for anything that no cache could be built from.
    """

    num_blocks: int
    """Blocks in the pool, the null block included."""
    block_size: int = 64
    kernel_block_size: int = 0
    """What a kernel sees as one page (K1); 0: equal to `block_size`."""
    enable_prefix_caching: bool = True
    hash_algorithm: str = "sha256"
    """For keys that leave the process (events, tiers); lookup in the index hashes nothing."""
    hit_rate_window: int = 1000
    """Requests in the rolling hit rate (V1)."""
    record_events: bool = False

    def __post_init__(self) -> None:
        _require(self.num_blocks >= 2, "num_blocks", self.num_blocks, "at least 2", 1024)
        _require(self.block_size >= 1, "block_size", self.block_size, "at least 1", 64)
        _require(
            self.hit_rate_window >= 1, "hit_rate_window", self.hit_rate_window, "at least 1", 1000
        )
        check_kernel_block_size(self.block_size, self.kernel_size)
        _require(
            self.hash_algorithm in HASH_ALGORITHMS,
            "hash_algorithm",
            self.hash_algorithm,
            f"one of {', '.join(HASH_ALGORITHMS)}",
            "sha256",
        )

    @property
    def kernel_size(self) -> int:
        """Tokens per kernel block."""
        return self.kernel_block_size or self.block_size

    @property
    def kernel_ratio(self) -> int:
        """Kernel blocks per block."""
        return self.block_size // self.kernel_size


def check_kernel_block_size(block_size: int, kernel_block_size: int) -> None:
    """Refuse a kernel block size that does not divide the block size, with both numbers (K1)."""
    if kernel_block_size > 0 and block_size % kernel_block_size == 0:
        return
    legal = [size for size in range(1, block_size + 1) if block_size % size == 0]
    raise ConfigError(
        f"kernel_block_size {kernel_block_size} must divide block_size {block_size}; "
        f"legal choices: {', '.join(map(str, legal))}"
    )


def _require(ok: bool, name: str, value: object, rule: str, example: object) -> None:  # noqa: FBT001 - a condition reads best in first place
    if not ok:
        raise ConfigError(f"{name} {value!r} must be {rule}, for example {example!r}")
