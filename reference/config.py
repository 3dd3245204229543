"""Sizes and switches of the cache control plane, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from typing import SupportsIndex

from kvproof.reference.groups import KINDS, GroupConfig, Layout
from kvproof.reference.identity import HASH_ALGORITHMS

MOST_IDS = 2**31
"""Of blocks and kernel blocks: kernels read tables of int32."""


class ConfigError(ValueError):
    """A setting is not usable; the message gives the value, the rule and a legal example."""


@dataclass(frozen=True)
class CacheConfig:
    """Options of section O that concern the control plane.

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
    groups: tuple[GroupConfig, ...] = ()
    """Empty: one group of full attention with the block sizes above."""
    state_pool: str = "shared"
    """`shared`: a state fills ordinary blocks (S9); `separate`: rows of a pool of its own."""
    max_requests: int = 256
    """Rows of the separate state pool that running requests are sure of."""
    prefix_cache_state_budget: int = 0
    """Further rows of the separate pool, for checkpoints only (S5)."""
    prefix_cache_decode_state_interval: int = 0
    """Tokens from one checkpoint to the next while decoding; 0: none (S6)."""
    return_routed_experts: bool = False
    """Keep the experts of each token beside the index (R1), of models that `experts` describes."""
    experts: tuple[int, int, int] = (0, 0, 0)
    """Experts to choose from, layers with experts, experts per token."""
    require_cached_experts: bool = False
    """A hit ends before the first unit without expert rows (R3)."""

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
        _switch("return_routed_experts", self.return_routed_experts, example=False)
        _switch("require_cached_experts", self.require_cached_experts, example=False)
        self._check_experts()
        _whole("max_requests", self.max_requests, least=1, example=256)
        self._check_states()
        for index, group in enumerate(self.groups):
            check_group(index, group)
        full = any(group.kind == "full" for group in self.layout.groups)
        rule = "false for a model without full attention: events name its blocks"
        _require(
            full or not self.record_events,
            "record_events",
            self.record_events,
            rule,
            example="false",
        )

    def _check_experts(self) -> None:
        known = [_is_whole(number, least=1) for number in self.experts] == [True] * 3
        rule = "three whole numbers, at least 1, of a model with experts"
        wanted = self.return_routed_experts
        _require(known or not wanted, "experts", self.experts, rule, (128, 48, 8))
        rule = "false unless return_routed_experts is true: there are no rows to require"
        required = self.require_cached_experts
        _require(wanted or not required, "require_cached_experts", required, rule, "false")

    def _check_states(self) -> None:
        pools = ("shared", "separate")
        _require(
            self.state_pool in pools,
            "state_pool",
            self.state_pool,
            "one of shared, separate",
            "shared",
        )
        _whole("prefix_cache_state_budget", self.prefix_cache_state_budget, least=0, example=16)
        interval, name = (
            self.prefix_cache_decode_state_interval,
            "prefix_cache_decode_state_interval",
        )
        _whole(name, interval, least=0, example=512)
        unit = self.layout.unit
        rule = f"0 or a multiple of the block size {unit}"
        _require(interval % unit == 0, name, interval, rule, 8 * unit)

    @cached_property
    def layout(self) -> Layout:
        """The groups and their classes."""
        one = GroupConfig("full", self.block_size, kernel_block_size=self.kernel_block_size)
        return Layout(self.groups or (one,))

    @property
    def kernel_size(self) -> int:
        """Tokens per kernel block."""
        return self.kernel_block_size or self.block_size

    @property
    def kernel_ratio(self) -> int:
        """Kernel blocks per block."""
        return self.block_size // self.kernel_size


def check_group(index: int, group: GroupConfig) -> None:
    """Refuse a group that no layer could have."""
    name = f"groups[{index}]"
    _require(group.kind in KINDS, f"{name}.kind", group.kind, f"one of {', '.join(KINDS)}", "full")
    _whole(f"{name}.block_size", group.block_size, least=1, example=64)
    check_kernel_block_size(group.block_size, group.kernel_size)
    if group.kind in ("window", "chunk"):
        _whole(f"{name}.size", group.size, least=1, example=1024)
    _whole(f"{name}.state_blocks", group.state_blocks, least=1, example=1)


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
