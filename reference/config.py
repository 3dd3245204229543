"""Sizes and switches of the cache control plane, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import SupportsIndex

from kvproof.reference.identity import HASH_ALGORITHMS

MOST_IDS = 2**31
"""Of blocks and kernel blocks: kernels read tables of int32."""


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
        _whole("num_blocks", self.num_blocks, least=2, example=1024)
        _whole("block_size", self.block_size, least=1, example=64)
        _whole("hit_rate_window", self.hit_rate_window, least=1, example=1000)
        check_kernel_block_size(self.block_size, self.kernel_size)
        _require(
            self.num_blocks <= MOST_IDS // self.kernel_ratio,
            "num_blocks",
            self.num_blocks,
            f"at most {MOST_IDS // self.kernel_ratio}: ids of kernel blocks are int32",
            1024,
        )
        names = list(HASH_ALGORITHMS)
        _require(
            self.hash_algorithm in names,
            "hash_algorithm",
            self.hash_algorithm,
            f"one of {', '.join(names)}",
            "sha256",
        )
        _switch("enable_prefix_caching", self.enable_prefix_caching, example=True)
        _switch("record_events", self.record_events, example=False)

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
    if _is_whole(kernel_block_size, least=1) and block_size % kernel_block_size == 0:
        return
    small = [size for size in range(1, isqrt(block_size) + 1) if block_size % size == 0]
    legal = sorted({*small, *(block_size // size for size in small)})
    raise ConfigError(
        f"kernel_block_size {kernel_block_size!r} must divide block_size {block_size}; "
        f"legal choices: {', '.join(map(str, legal))}"
    )


def _whole(name: str, value: object, *, least: int, example: int) -> None:
    ok = _is_whole(value, least=least)
    _require(ok, name, value, f"a whole number, at least {least}", example)


def _is_whole(value: object, *, least: int) -> bool:
    return isinstance(value, SupportsIndex) and value.__index__() >= least


def _switch(name: str, value: object, *, example: bool) -> None:
    _require(isinstance(value, bool), name, value, "true or false", example)


def _require(ok: bool, name: str, value: object, rule: str, example: object) -> None:  # noqa: FBT001 - a condition reads best in first place
    if not ok:
        raise ConfigError(f"{name} {value!r} must be {rule}, for example {example!r}")
