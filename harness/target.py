"""The contract between kvproof and a cache manager under test.

A target is an engine's cache manager behind a dozen verbs of the domain. Every answer is a
frozen record of what the engine's *worker* would see: tables, computed ranges, copies, frees.
The module needs nothing but the standard library of Python 3.10, because it is imported inside
the environment of the engine under test.

Life of a step: `admit` and `extend` each schedule one step and return its number; `complete`
says that the step has run. A target with `Profile.in_flight_steps == 0` sees `complete` right
after the call; others must cope with that many steps scheduled and not complete, oldest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

CONTRACT_VERSION = 1
"""Raised when a verb or a record changes meaning; host and worker must agree on it."""

Table = tuple[int, ...]
"""Ids in position order: entry i covers tokens [i * size, (i + 1) * size)."""


@dataclass(frozen=True)
class Namespace:
    """Everything that separates equal tokens of different tenants (H1, H2)."""

    adapter: str | None = None
    adapter_version: str | None = None
    salt: str | None = None


@dataclass(frozen=True)
class Span:
    """A run of placeholder tokens [start, start + length) of one image, video or audio (H1)."""

    kind: str
    start: int
    length: int
    content: str
    """Content hash as supplied by the caller."""


@dataclass(frozen=True)
class Request:
    """What arrives at admission: all tokens known so far (prompt, and output when resuming)."""

    id: str
    tokens: tuple[int, ...]
    namespace: Namespace = Namespace()
    spans: tuple[Span, ...] = ()
    read: bool = True
    """False: may not reuse cached blocks (A2)."""
    store: bool = True
    """False: its blocks never become reusable (A2)."""
    resumed: bool = False
    """True when the request was admitted before and then preempted (V1)."""


@dataclass(frozen=True)
class TargetConfig:
    """The pool a test case asks for. Sizes in tokens; `num_blocks` includes the null block."""

    num_blocks: int
    block_size: int
    kernel_block_size: int = 0
    """0: equal to `block_size`."""
    prefix_caching: bool = True

    @property
    def kernel_size(self) -> int:
        """Tokens per kernel block."""
        return self.kernel_block_size or self.block_size


@dataclass(frozen=True)
class Scheduled:
    """A step was scheduled: positions [start, stop) are computed, [0, start) are read."""

    step: int
    hit: int
    """Positions [0, hit) come from the cache; 0 for `extend`."""
    start: int
    stop: int
    blocks: tuple[Table, ...]
    """Per group: manager block ids of the request."""
    tables: tuple[Table, ...]
    """Per group: the kernel-block ids that the worker reads for the request."""
    copies: tuple[tuple[int, int, int], ...] = ()
    """(group, source block, destination block), done before the step computes."""


@dataclass(frozen=True)
class Refused:
    """Nothing was done, and nothing changed (B4)."""

    reason: str
    """`no_space` now, `never_fits` (B8), `busy` (reset), or `invalid` (H8)."""
    needed: int = 0
    available: int = 0
    detail: str = ""


@dataclass(frozen=True)
class Completed:
    """A step is done. `blocks`/`tables` are those of its request now, empty if it is gone."""

    step: int
    blocks: tuple[Table, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Released:
    """The request (or pin) no longer holds `blocks` (per group)."""

    blocks: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Evicted:
    """These blocks lost their identity on request (per group)."""

    blocks: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Batch:
    """Padded kernel tables of one batch, rows in the order asked for."""

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
    """Cumulative tokens of requests that may read; resumed ones are counted apart (V1)."""

    queries: int
    hits: int
    resumed_queries: int = 0
    resumed_hits: int = 0


@dataclass(frozen=True)
class CacheEvent:
    """One change of the index (V4). `kind` is `stored`, `removed` or `cleared`."""

    kind: str
    key: str = ""
    parent: str = ""
    """Key of the block before, empty for the first block of a chain."""
    group: int = 0
    tokens: tuple[int, ...] = ()
    namespace: Namespace = Namespace()
    spans: tuple[Span, ...] = ()
    """Spans that begin inside the block, with positions in the request."""


@dataclass(frozen=True)
class Inspection:
    """What the engine says about itself; the harness only ever compares it with what it saw."""

    usage: Usage
    state: str = ""
    """Opaque digest of references, free order, index, statistics and pending copies (B4, T1)."""
    holders: dict[int, int] = field(default_factory=dict)
    """Block -> holders, held blocks only; empty when the profile does not report holders (B2)."""
    statistics: HitStatistics | None = None
    events: tuple[CacheEvent, ...] = ()
    """Events since the last inspection, oldest first."""


@dataclass(frozen=True)
class Profile:
    """What a target supports, and the documented choices in which engines differ."""

    engine: str
    version: str
    block_sizes: tuple[int, ...]
    """Sizes drawn for test cases, tokens."""
    max_kernel_ratio: int = 1
    """Largest block_size / kernel_block_size; 1: no kernel blocks (K1)."""
    adapters: bool = True
    salts: bool = True
    spans: bool = False
    span_identity: tuple[str, ...] = ("kind", "start", "length", "content")
    """Fields of a span that are part of a block's identity (H1)."""
    validates: bool = False
    """The cache manager itself refuses malformed identity input (H8)."""
    no_read: bool = False
    no_store: bool = False
    pins: bool = False
    evict: bool = True
    lookup: bool = False
    batch: bool = False
    """`batch` returns the padded tables that the worker gets (K3)."""
    holders: bool = False
    state: bool = False
    statistics: bool = False
    events: bool = False
    in_flight_steps: int = 0
    """How many steps may be scheduled and not complete (B6); 0: the engine fences elsewhere."""
    sharing: str = "after_step"
    """`after_step`: blocks are reusable once complete; `when_scheduled`: at once (T2, C4)."""
    duplicates: str = "shared"
    """`shared`: equal content is kept once (T2); `kept`: several copies may exist."""
    reset: str = "always"
    """`always`, or `idle`: refused with `busy` while a request holds blocks."""
    eviction_order: str = "lru_tail_first"
    """Declared policy (B3), or `undeclared`."""
    index: str = "tree"
    """`tree`: no block outlives the block before it (T3); `flat`: entries come and go alone."""
    evict_keeps_place: bool = False
    """Blocks that `evict` strips stay where they were in the free order."""
    maximal: bool = True
    """The hit equals the longest that the rules allow; False: only never longer."""
    unsupported: dict[str, str] = field(default_factory=dict)
    """Capability above that is off -> why, in the engine's own terms."""


@runtime_checkable
class Target(Protocol):
    """A cache manager under test, created by a factory `make_target(TargetConfig) -> Target`.

    Every verb returns a record; an exception out of a verb is a crash of the target. `Refused`
    is an answer. Verbs that the profile switches off are never called.
    """

    @property
    def profile(self) -> Profile:
        """Constant for the life of the target."""

    def admit(self, request: Request, compute: int | None = None) -> Scheduled | Refused:
        """Match, allocate and schedule the first `compute` tokens after the hit (all: None)."""

    def extend(
        self, request_id: str, tokens: tuple[int, ...] = (), compute: int | None = None
    ) -> Scheduled | Refused:
        """Append `tokens` and schedule `compute` of the tokens not yet computed (all: None)."""

    def complete(self, step: int) -> Completed:
        """The step has run. Steps complete in the order in which they were scheduled."""

    def finish(self, request_id: str) -> Released:
        """The request is done. Idempotent (B2): an unknown id releases nothing."""

    def cancel(self, request_id: str) -> Released:
        """The client is gone; safe from every status and idempotent (C6)."""

    def preempt(self, request_id: str) -> Released:
        """Take every block; the request comes back by `admit` with `resumed=True`."""

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
        """Give back what the target holds outside the process's memory."""


class Cycle(Protocol):
    """A cache manager's native life of one request, for benchmarks.

    An adapter module offers it as `make_cycle(TargetConfig, variant) -> Cycle` beside
    `make_target`. `prepare` runs outside the clock, `run` inside it; `run` is the whole of
    identity, match, allocate, register and free, with the engine's own calls only.
    """

    def prepare(self, tokens: memoryview) -> object:
        """Turn int32 token ids into the prompt type native to the engine."""

    def run(self, index: int, prompt: object) -> tuple[int, Sequence[int], Sequence[int]]:
        """Serve one request alone; returns (hit tokens, block ids in order, freed ids)."""

    def cached_blocks(self) -> int:
        """Blocks that are cached now."""
