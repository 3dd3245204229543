"""Sizes and switches of the cache control plane, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kvproof.reference.core.attention_groups import GroupConfig, Layout
from kvproof.reference.core.identity import HASH_ALGORITHMS
from kvproof.reference.core.validation import (
    ConfigError,
    check_groups,
    check_kernel_block_size,
    is_whole,
    require,
    switch,
    whole,
)

MOST_IDS = 2**31
"""Most blocks, kernel blocks or rows: kernels read tables of int32."""
NO_EXPERTS = (0, 0, 0)

__all__ = ["MOST_IDS", "CacheConfig", "ConfigError"]


@dataclass(frozen=True)
class CacheConfig:
    """Options of section O of the control plane, in tokens. Raises ConfigError."""

    num_blocks: int
    """Blocks in the pool, the null block included."""
    block_size: int = 64
    kernel_block_size: int = 0
    """Tokens in one page of the kernel (K1); 0: equal to `block_size`."""
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
    """Keep the experts of each token next to the index (R1), for models with `experts`."""
    experts: tuple[int, int, int] = NO_EXPERTS
    """Experts to choose from, layers with experts, experts per token."""
    require_cached_experts: bool = False
    """A hit ends before the first unit without expert rows (R3)."""
    cache_partial_blocks: bool = False
    """Hits may end inside a block, which is copied before it is written (T6)."""

    def __post_init__(self) -> None:
        whole("num_blocks", self.num_blocks, least=2, example=1024)
        whole("block_size", self.block_size, least=1, example=64)
        whole("hit_rate_window", self.hit_rate_window, least=1, example=1000)
        whole("max_requests", self.max_requests, least=1, example=256)
        check_kernel_block_size(self.block_size, self.kernel_size)
        check_groups(self.groups)
        ratio = max(group.kernel_ratio for group in self.layout.groups)
        rule = f"at most {MOST_IDS // ratio}: ids of kernel blocks are int32"
        require(self.num_blocks <= MOST_IDS // ratio, "num_blocks", self.num_blocks, rule, 1024)
        rule = f"one of {', '.join(HASH_ALGORITHMS)}"
        known = self.hash_algorithm in list(HASH_ALGORITHMS)
        require(known, "hash_algorithm", self.hash_algorithm, rule, "sha256")
        switch("enable_prefix_caching", self.enable_prefix_caching, example=True)
        switch("record_events", self.record_events, example=False)
        switch("return_routed_experts", self.return_routed_experts, example=False)
        switch("require_cached_experts", self.require_cached_experts, example=False)
        self._check_experts()
        self._check_states()
        self._check_partial_blocks()
        full = any(group.kind == "full" for group in self.layout.groups)
        rule = "false for a model without full attention: events name its blocks"
        named = full or not self.record_events
        require(named, "record_events", self.record_events, rule, "false")

    def _check_experts(self) -> None:
        wanted, rule = self.return_routed_experts, "three whole numbers, at least 1"
        given: object = self.experts
        counts = isinstance(given, Sequence) and [is_whole(n, least=1) for n in given] == [True] * 3
        require(
            counts or (given == NO_EXPERTS and not wanted), "experts", given, rule, (128, 48, 8)
        )
        rule = "false unless return_routed_experts is true: there are no rows to require"
        required = self.require_cached_experts
        require(wanted or not required, "require_cached_experts", required, rule, "false")

    def _check_partial_blocks(self) -> None:
        name, wanted = "cache_partial_blocks", self.cache_partial_blocks
        switch(name, wanted, example=False)
        groups = self.layout.groups
        other = next((group.kind for group in groups if group.kind != "full"), "")
        rule = f"false for a model with a {other} group: it is valid after whole units only"
        require(not (wanted and other), name, wanted, rule, "false")
        rule = "false for a model with a draft group: it needs one whole unit more"
        draft = any(group.draft for group in groups)
        require(not (wanted and draft), name, wanted, rule, "false")
        rule = "false if require_cached_experts is true: partial blocks keep no expert rows"
        require(not (wanted and self.require_cached_experts), name, wanted, rule, "false")

    def _check_states(self) -> None:
        rule = "one of shared, separate"
        require(
            self.state_pool in ("shared", "separate"), "state_pool", self.state_pool, rule, "shared"
        )
        budget = self.prefix_cache_state_budget
        whole("prefix_cache_state_budget", budget, least=0, example=16)
        rows = self.max_requests + budget
        rule = f"below {MOST_IDS}, with the budget for checkpoints: ids of rows are int32"
        require(rows < MOST_IDS, "max_requests", self.max_requests, rule, 256)
        interval, unit = self.prefix_cache_decode_state_interval, self.layout.unit
        name = "prefix_cache_decode_state_interval"
        whole(name, interval, least=0, example=8 * unit)
        rule = f"0 or a multiple of the block size {unit}"
        require(interval % unit == 0, name, interval, rule, 8 * unit)

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
