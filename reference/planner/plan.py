"""A memory plan: groups, blocks, and which layer is which bytes. A value, JSON in and out (P9).

Physical layout (P7): on every worker a block id owns one *row* of `block_bytes`. A group cuts the
row into `block_size / kernel_block_size` kernel rows, and in each of them every layer of the group
has its place. Groups use the same rows through different ids, so rows fit any mix of page sizes,
and the only loss is the part of a row that a group does not fill. A recurrent state is one run of
bytes over the rows of its blocks, in the order of its ids (S9), or a row of a pool of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import lcm
from typing import NamedTuple

import msgspec

from kvproof.reference.core.attention_groups import GroupConfig, Kind
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.context_ranks import ALONE, ContextRanks

SCHEMA_VERSION = 1

GIB = 1 << 30
MOST_BYTES = 1 << 60
"""No memory has as many, and no number of a plan is larger."""


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """Input of a plan besides the model. Sizes in tokens, memory in bytes."""

    memory: tuple[int, ...]
    """Bytes of each worker; one worker for each pipeline stage."""
    max_len: int
    block_size: int = 64
    """Block sizes of the groups are multiples of it."""
    kernel_block_size: int = 0
    """0: equal to `block_size`."""
    num_blocks: int = 0
    """0: from memory."""
    max_batch_tokens: int = 8192
    """Tokens of one request that may be scheduled and not complete: windows keep them too."""
    drafts: int = 0
    """Draft tokens per step; each needs a recurrent state of its own until it is accepted."""
    max_unit: int = 0
    """Bound on the least common multiple of the block sizes, to which hits align (P5); 0: four
    times `block_size`, so that small blocks stay worth choosing."""
    hybrid_groups: bool = True
    """False: windows and chunks are kept whole, in one group with full attention (P8)."""
    state_pool: str = "shared"
    max_requests: int = 256
    """Rows of a separate state pool for running requests."""
    prefix_cache_state_budget: int = 0
    """Rows of a separate state pool for checkpoints."""
    context_parallel: int = 1
    """Ranks that share the tokens of each request (Q4)."""
    interleave: int = 1
    """Consecutive tokens of a request that lie on one of them."""

    @property
    def kernel_size(self) -> int:
        """Tokens per kernel block."""
        return self.kernel_block_size or self.block_size

    @property
    def context(self) -> ContextRanks:
        """The ranks that share the tokens of a request."""
        return ContextRanks(self.context_parallel, self.interleave)

    @property
    def kernel_slots(self) -> int:
        """Tokens of a kernel block on one of these ranks."""
        return self.kernel_size // self.context_parallel

    @property
    def unit_bound(self) -> int:
        """Largest unit that a plan may have."""
        return self.max_unit or 4 * self.block_size

    @property
    def states(self) -> int:
        """Recurrent states that a running request needs: its own and one per draft (X5)."""
        return 1 + self.drafts

    @property
    def state_rows(self) -> int:
        """Rows of a separate state pool; row 0 is never used."""
        return 1 + self.max_requests + self.prefix_cache_state_budget


@lru_cache(maxsize=4096)
def units_held(kind: Kind, size: int, length: int, *, unit: int, in_flight: int) -> int:
    """Return the units that a request of `length` tokens holds at most in an attention group.

    A step begins at any position and computes up to `in_flight` tokens. A window of w tokens keeps
    w - 1 tokens before them, a chunk those since its border, whose place in a unit recurs (P2, X1).
    """
    whole = -(-length // unit)
    if kind == "full":
        return whole
    seen = size - 1 + in_flight
    if kind == "window":
        return min(whole, -(-(unit - 1 + seen) // unit))
    borders = range(0, min(length, lcm(size, unit)), size)
    return max(-(-min(border + seen, length) // unit) - border // unit for border in borders)


@dataclass(frozen=True)
class PlannedGroup:
    """Layers with one block table, over all workers."""

    kind: Kind
    block_size: int
    layers: tuple[str, ...]
    size: int = 0
    kernel_block_size: int = 0
    draft: bool = False
    state_blocks: int = 1
    readers: tuple[str, ...] = ()
    """Layers that own nothing and read the pages of a layer of this group."""
    ratio: int = 1
    """Tokens after which an entry of each of its layers is whole (Q1)."""
    context: ContextRanks = ALONE
    """Ranks that share its tokens (Q4)."""

    def entries(self, tokens: int, ratio: int) -> int:
        """Return the entries of a rank for tokens of all ranks, whole rounds; 1 of a state."""
        return 1 if self.kind == "state" else tokens // self.context.count // ratio

    @property
    def config(self) -> GroupConfig:
        """The group as the cache manager takes it."""
        return GroupConfig(
            kind=self.kind,
            block_size=self.block_size,
            size=self.size,
            kernel_block_size=self.kernel_block_size,
            draft=self.draft,
            state_blocks=self.state_blocks,
            ratio=self.ratio,
        )


@dataclass(frozen=True)
class View:
    """The bytes of one part of one layer, inside a kernel row or inside a state."""

    layer: str
    part: str
    group: int
    offset: int
    nbytes: int
    """Per entry; of a state, in all."""
    heads: int
    width: int
    dtype: str
    owner: str = ""
    """The layer that owns these bytes, where this one only reads them (P1)."""
    ratio: int = 1
    """Tokens of one entry (Q1)."""


@dataclass(frozen=True)
class Worker:
    """The share of one pipeline stage, on each of its tensor-parallel ranks."""

    memory: int
    block_bytes: int
    """The row that one block id owns."""
    used: tuple[int, ...]
    """Per group: bytes of one block that its layers fill; for states, bytes of one state."""
    views: tuple[View, ...]
    state_row_bytes: int = 0


class Need(NamedTuple):
    """Memory of one request of a given length; bytes on all workers together (P2)."""

    length: int
    blocks: tuple[int, ...]
    """Per group."""
    bytes: int
    padding: int
    """Bytes of rows that no layer of the group fills."""
    rounding: int
    """Bytes of whole blocks beyond the tokens that are needed."""
    state_rows: int


@dataclass(frozen=True)
class Choice:
    """The best plan with `groups` groups: it shows the gain of another group (P4)."""

    groups: int
    block_sizes: tuple[int, ...]
    requests: float
    """Requests of `max_len` that fit at once."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that follows from a model, memory and settings."""

    schema: int = SCHEMA_VERSION
    model: str
    settings: PlanSettings
    tensor_parallel: int = 1
    groups: tuple[PlannedGroup, ...]
    workers: tuple[Worker, ...]
    num_blocks: int
    """On every worker, the null block included."""
    choices: tuple[Choice, ...] = ()
    notes: tuple[str, ...] = ()

    @cached_property
    def unit(self) -> int:
        """Tokens of the grain of hits: the least common multiple of the block sizes."""
        return lcm(*(group.block_size for group in self.groups))

    @property
    def usable(self) -> int:
        """Blocks less the null block."""
        return self.num_blocks - 1

    @property
    def separate_states(self) -> bool:
        """Whether states live in a pool of their own."""
        return any(worker.state_row_bytes for worker in self.workers)

    def blocks(self, length: int) -> tuple[int, ...]:
        """Return the blocks that a request of `length` tokens holds at most, per group."""
        return tuple(self._blocks(group, length) for group in self.groups)

    def _blocks(self, group: PlannedGroup, length: int) -> int:
        if group.kind == "state":
            return 0 if self.separate_states else group.state_blocks * self.settings.states
        in_flight = self.settings.max_batch_tokens
        units = units_held(group.kind, group.size, length, unit=self.unit, in_flight=in_flight)
        return units * (self.unit // group.block_size)

    def cache_config(self) -> CacheConfig:
        """Return the configuration of a cache manager."""
        return CacheConfig(
            num_blocks=self.num_blocks,
            block_size=self.unit,
            groups=tuple(group.config for group in self.groups),
            state_pool=self.settings.state_pool,
            max_requests=self.settings.max_requests,
            prefix_cache_state_budget=self.settings.prefix_cache_state_budget,
        )

    def to_json(self) -> bytes:
        """Return the plan as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)
