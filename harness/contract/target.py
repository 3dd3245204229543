"""The contract between kvproof and a cache manager under test.

A target is an engine's cache manager with the verbs of `Target`. Every answer is a frozen record of
the engine's *worker* view: tables, computed ranges, copies, frees. The module runs inside the
engine's environment, so it needs only the standard library of Python 3.10.

Life of a step: `admit` and `extend` each schedule one step and return its number; `complete` ends
it. With `Profile.in_flight_steps == 0` each step completes right after its call; other targets must
accept that many steps scheduled and not complete, oldest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import Any, Protocol, runtime_checkable

from kvproof.harness.contract.profile import Profile
from kvproof.harness.model.records import CacheEvent as CacheEvent
from kvproof.harness.model.records import Namespace as Namespace
from kvproof.harness.model.records import Request as Request
from kvproof.harness.model.records import Span as Span
from kvproof.harness.model.visibility import Visibility, visibility

CONTRACT_VERSION = 3
"""Raised when a verb or a record changes meaning; host and worker must agree on it."""

Table = tuple[int, ...]
"""Ids in position order: entry i covers tokens [i * size, (i + 1) * size)."""


@dataclass(frozen=True)
class Group:
    """Layers that share one block table and one visibility rule (X1)."""

    kind: str
    """`full`, `window`, `chunk` (local attention), or `state` (recurrent)."""
    block_size: int
    """Tokens per block, of all context ranks; states are checkpointed at multiples of it."""
    size: int = 0
    """Tokens of the window (the current position included) or of the chunk."""
    kernel_block_size: int = 0
    """0: equal to `block_size`."""
    draft: bool = False
    """The layers belong to a draft model: a hit needs one block more than it returns (X3)."""
    state_blocks: int = 1
    """Blocks that one state fills in the shared pool (S9)."""
    ratio: int = 1
    """Tokens of one entry, which is written with the last of them (Q1)."""
    beside: int | None = None
    """Group whose blocks this one's belong to, alike but for ratio and pages (Q2)."""
    further_ratios: tuple[int, ...] = ()
    """Ratios of its further layers, whose pages lie in the same blocks: an indexer's (Q1, Q2)."""

    @property
    def entry(self) -> int:
        """Tokens after which an entry of each of its layers is whole (Q1)."""
        return lcm(self.ratio, *self.further_ratios)

    @property
    def kernel_size(self) -> int:
        """Tokens per kernel block."""
        return self.kernel_block_size or self.block_size

    @property
    def visibility(self) -> Visibility:
        """The rule of the kind: which positions are read."""
        return visibility(self.kind, self.size)


@dataclass(frozen=True)
class TargetConfig:
    """The pool of a test case. Sizes in tokens; `num_blocks` includes the null block."""

    num_blocks: int
    block_size: int
    """Block size of the only group if `groups` is empty; else the granule of hit lengths."""
    kernel_block_size: int = 0
    """0: equal to `block_size`."""
    prefix_caching: bool = True
    groups: tuple[Group, ...] = ()
    """Empty: one group of full attention."""
    state_rows: int = 0
    """Rows of a separate state pool, row 0 never used; 0: states live in the shared pool (S9)."""
    decode_interval: int = 0
    """A state checkpoint every so many tokens while decoding; 0: none (S6)."""
    require_experts: bool = False
    """A hit ends before the first block without expert rows (R3)."""
    partial_blocks: bool = False
    """A hit may end inside a block: the partial last block of a request is cached until a longer
    block with the same start replaces it. A hit copies it before the first write (T6).

    With states, a prompt step that ends inside a block saves its state with a frozen copy of that
    block (`Scheduled.saves`); no request of such a configuration wants expert rows, since the copy
    would have none.
    """
    host_blocks: int = 0
    """Blocks of the host tier below the pool; their ids start at `num_blocks`."""
    host_rows: int = 0
    """State rows of the host tier, which then also has blocks; their ids start at `state_rows`."""
    host_policy: str = ""
    """When blocks are copied to the host tier, one of `Profile.host_policies`."""
    context_ranks: int = 1
    """Ranks that share the tokens of each block of full attention; other groups are whole on each
    (Q4)."""

    @property
    def kernel_size(self) -> int:
        """Tokens per kernel block."""
        return self.kernel_block_size or self.block_size

    @property
    def layout(self) -> tuple[Group, ...]:
        """The groups; one of full attention if `groups` is empty."""
        one = Group("full", self.block_size, kernel_block_size=self.kernel_block_size)
        return self.groups or (one,)


@dataclass(frozen=True)
class StateUse:
    """The effect of a step on the recurrent state of one `state` group."""

    group: int
    read: Table
    """Blocks (or the row) with the state after exactly `start` tokens; empty: the zero state."""
    writes: tuple[tuple[int, Table], ...]
    """(tokens, blocks): after the step, `blocks` hold the state after exactly `tokens` tokens.

    One entry after `stop` tokens and one after each token before a draft; any earlier entry is a
    checkpoint that the step writes on its way.
    """


@dataclass(frozen=True)
class Scheduled:
    """A scheduled step: computes positions [start, stop), reads the visible ones of [0, start).

    `stop` may be lower than requested: at a checkpoint, or to keep a span whole. A checkpoint after
    `stop` tokens is a copy in `saves`; earlier ones are in `states`.
    """

    step: int
    hit: int
    """Positions [0, hit) come from the cache; 0 for `extend`."""
    start: int
    stop: int
    blocks: tuple[Table, ...]
    """Per group: block ids of the request, null where no later position sees the block (X4)."""
    tables: tuple[Table, ...]
    """Per group: the kernel-block ids that the worker reads for the request."""
    copies: tuple[tuple[int, int, int], ...] = ()
    """(group, source block, destination block), done before the step computes."""
    states: tuple[StateUse, ...] = ()
    """One for each `state` group."""
    saves: tuple[tuple[int, int, int], ...] = ()
    """(group, source block, destination block): checkpoints, copied after the step computed.

    In a group with a table over positions: the frozen copy of the block that the checkpoint cuts.
    """
    encode: tuple[int, ...] | None = None
    """Spans (by index) whose encoder has to run for this step (M5); None: not reported."""
    moves: tuple[tuple[int, int, int], ...] = ()
    """(group, source, destination): copies of blocks and rows between the pools and the host tier
    since the last report, oldest first; they run before the step reads its hit."""


@dataclass(frozen=True)
class Refused:
    """The target refused the call and changed nothing (B4)."""

    reason: str
    """`no_space` now, `never_fits` (B8), `busy` (reset), or `invalid` (H8)."""
    needed: int = 0
    available: int = 0
    detail: str = ""


@dataclass(frozen=True)
class Completed:
    """A completed step. `blocks`/`tables` are the request's current ones, empty after its end."""

    step: int
    blocks: tuple[Table, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Released:
    """The request (or pin) no longer holds `blocks` (per group)."""

    blocks: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Evicted:
    """Blocks that lost their identity by `evict` (per group)."""

    blocks: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Batch:
    """Padded kernel tables of one batch, rows in the order of the call."""

    tables: tuple[tuple[Table, ...], ...]
    """Per group: rows of equal width."""


@dataclass(frozen=True)
class Usage:
    """Blocks by owner; the null block is in none of them and not in `total` (B7)."""

    total: int
    free: int
    held: int
    cached: int


@dataclass(frozen=True)
class HitStatistics:
    """Cumulative tokens of requests that may read; resumed requests have their own counts (V1)."""

    queries: int
    hits: int
    resumed_queries: int | None = 0
    """None: what resumed requests ask and hit is left out by the engine."""
    resumed_hits: int | None = 0


@dataclass(frozen=True)
class Retained:
    """Memory of a manager besides the blocks themselves (T4)."""

    tokens: int
    """Tokens whose ids or keys its index keeps, for the first group of full attention. A buffer
    counts with all its tokens, also where a part of it is needed."""
    requests: int
    """Requests and pins of which it keeps a record; it may keep one of a refused one, which waits.
    """
    namespaces: int | None = None
    """Namespaces of which its index keeps a record; None: they are parts of keys."""
    expert_rows: int | None = None
    """Rows of routed experts that its index keeps, or that are of requests which have ended; None:
    not counted."""
    state_rows: int | None = None
    """Rows of the separate state pool with a running state or a checkpoint; None: not counted."""


@dataclass(frozen=True)
class Inspection:
    """The engine's own counts and digests; the harness only compares them with its model."""

    usage: Usage
    state: str = ""
    """Opaque digest of references, free order, index, statistics and pending copies (B4, T1)."""
    holders: dict[int, int] = field(default_factory=dict)
    """Block -> holders, held blocks only; empty when the profile does not report holders (B2)."""
    statistics: HitStatistics | None = None
    events: tuple[CacheEvent, ...] = ()
    """Events since the last inspection, oldest first."""
    dropped: tuple[Table, ...] | None = None
    """Per group: blocks (or rows, also of the host tier) that lost their identity since the last
    inspection, except by a reset. None: not reported; the harness infers it from allocations."""
    moves: tuple[tuple[int, int, int], ...] = ()
    """As in `Scheduled`; these copies preceded every eviction in `dropped`."""
    backing_up: int = 0
    """Blocks and rows with a requested and pending copy to the host tier."""
    retained: Retained | None = None
    """None: not reported."""


@runtime_checkable
class Target(Protocol):
    """A cache manager under test, created by a factory `make_target(TargetConfig) -> Target`.

    Every verb returns a record. `Refused` is a valid answer; an exception is a crash of the target.
    Verbs that the profile switches off are never called.
    """

    @property
    def profile(self) -> Profile:
        """Constant for the life of the target."""

    def admit(self, request: Request, compute: int | None = None) -> Scheduled | Refused:
        """Match, allocate and schedule the first `compute` tokens after the hit (all: None)."""

    def extend(
        self,
        request_id: str,
        tokens: tuple[int, ...] = (),
        compute: int | None = None,
        drafts: tuple[int, ...] = (),
    ) -> Scheduled | Refused:
        """Append `tokens` and schedule `compute` of the tokens not yet computed (all: None).

        `drafts` follow `tokens`; one step computes them all, and its completion accepts or rejects
        them. Until then no other step of the request is scheduled.
        """

    def complete(
        self, step: int, accepted: int | None = None, experts: tuple[int, ...] = ()
    ) -> Completed:
        """Complete a step. Steps complete in the order in which they were scheduled.

        The first `accepted` of its drafts stay (all: None); the request is cut after them (X5).
        `experts` has one row for each position that the step computed, drafts included.
        """

    def experts(self, request_id: str) -> tuple[int | None, ...]:
        """Return the expert row of every position but the last; None where it is missing (R2)."""

    def finish(self, request_id: str) -> Released:
        """Release a completed request. Idempotent (B2): an unknown id releases nothing."""

    def cancel(self, request_id: str) -> Released:
        """Release a request that its client dropped; safe in every status and idempotent (C6)."""

    def preempt(self, request_id: str) -> Released:
        """Take every block; the request returns by `admit` with `resumed=True`."""

    def pin(self, request: Request) -> int:
        """Hold the cached prefix of `request` under its id; returns the tokens held (B2)."""

    def unpin(self, request_id: str) -> Released:
        """Drop a pin. Idempotent."""

    def evict(self, count: int) -> Evicted:
        """Take the identity of up to `count` cached-only blocks, in eviction order."""

    def reset(self) -> Released | Refused:
        """Forget everything cached: a new epoch (H6)."""

    def lookup(self, request: Request) -> int:
        """Tokens that `request` would hit now; changes nothing (T1)."""

    def batch(self, request_ids: tuple[str, ...]) -> Batch:
        """The padded tables of these requests as the worker gets them (K3)."""

    def inspect(self) -> Inspection:
        """Counts and digests; changes nothing but draining events."""

    def close(self) -> None:
        """Release the resources outside the process's memory."""


PARTS = ("prompt", "identity", "match, room, registration", "tables", "end", "in its favour")
"""Parts of a request's life in a bench, as reports list them."""


class Cycle(Protocol):
    """A cache manager's native life of one request, for benchmarks.

    An adapter module offers `make_cycle(TargetConfig, variant) -> Cycle` in addition to
    `make_target`. `run` is timed, `prepare` is not. `run` covers identity, match, allocate,
    register and free, with the engine's own calls only.

    A cycle for a configuration with groups has `serves_groups = True`; `make_cycle` raises
    UnsupportedVerb for unsupported groups. The optional `lookup(prompt) -> int` returns only the
    hit tokens of `prompt`; the case `match` is skipped without it. The optional `given` states for
    each of PARTS by which calls, on which input; the optional `lacks` names the parts that it
    leaves out: it need not deliver blocks then, and reports mark it.
    """

    def prepare(self, tokens: memoryview) -> object:
        """Turn int32 token ids into the prompt type native to the engine."""

    def run(self, index: int, prompt: object) -> tuple[int, Sequence[Any], Sequence[int]]:
        """Serve one request alone; returns (hit tokens, block ids in order, freed ids).

        With groups, the second item has one table per group, and the freed ids are those of full
        attention. A table has one entry per block of the prompt, null where no token is visible; a
        state's table has its blocks.
        """

    def cached_blocks(self) -> int:
        """Blocks that are cached now."""
