"""The cache manager: admits, extends and releases requests over all groups of one model.

    admit   match -> longest valid hit -> does it fit? -> hold the hit -> take new blocks
    end_step      -> index the units the step computed, share equal ones, leave what no window sees
    release       -> scratch to the pool, cached blocks to the idle orders

A request has a table for full attention and one for each class of windows and chunks. Unit i of a
table hangs on the index for i < `indexed`, and is scratch of this request alone from there on.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from numpy.typing import ArrayLike

from kvproof.reference.cache.allocator import Holdings
from kvproof.reference.cache.cache_events import CacheEvent, EventLog
from kvproof.reference.cache.capacity import Needs
from kvproof.reference.cache.eviction import Residency
from kvproof.reference.cache.expert_history import Recorded
from kvproof.reference.cache.partial_hits import hit_length
from kvproof.reference.cache.request_state import Admission, Live, Refusal, Usage, unfit
from kvproof.reference.cache.step_fence import Steps
from kvproof.reference.core.attention_groups import GroupTables
from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.block_table import BatchTable, expand, pad
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.cache_policy import ALLOWED, DISABLED, Access
from kvproof.reference.core.hit_statistics import HitStatistics
from kvproof.reference.core.identity import (
    DEFAULT_NAMESPACE,
    TOKEN_BYTES,
    Namespace,
    Span,
    Tokens,
    token_bytes,
)
from kvproof.reference.core.media_spans import to_encode
from kvproof.reference.prefix.node import Match

NO_SPANS: tuple[Span, ...] = ()
NOTHING: Mapping[str, Any] = {}
NO_HIT = Match(None, 0, 0)
_IDS = attrgetter("ids")


class CacheManager:
    """Paged cache with prefix reuse. Single-threaded and deterministic (C7)."""

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.statistics = HitStatistics(config.hit_rate_window)
        self.events = EventLog(config) if config.record_events else None
        self.residency = Residency(config, self.events)
        self.pool = self.residency.pool
        self.trie = self.residency.trie
        self.hits = hit_length(config, self.residency)
        self.needs = Needs(config, self.residency)
        self.live: dict[str, Live] = {}
        self.pins: dict[str, Live] = {}
        self._steps = Steps()
        self._unit = self.residency.unit
        self._caching = config.enable_prefix_caching
        self._tables = GroupTables(config.layout)
        self.holdings = Holdings(config, self.residency, self._steps)
        self.states = self.holdings.states
        self.experts = self.residency.experts

    @property
    def epoch(self) -> int:
        """Counts resets (H6)."""
        return self.holdings.epoch

    def begin_step(self) -> int:
        """Open a step; requests admitted or extended from now on are computed in it (S4)."""
        return self._steps.begin()

    def end_step(
        self,
        step: int,
        *,
        accepted: Mapping[str, int] = NOTHING,
        experts: Mapping[str, ArrayLike] = NOTHING,
    ) -> None:
        """Index what the step computed (T2) and lift the fence of what it may have read (B6).

        `accepted` says how many drafts of a request stay (all, if it is not named) (X5);
        `experts` has the rows of the tokens that it computed, [tokens, layers, ranks] (R1). Steps
        end oldest first; raises RuntimeError otherwise, and ValueError for malformed results,
        before anything changes.
        """
        if accepted or experts:
            self.holdings.check_results(self._steps.running(step), accepted, experts)
        for scheduled in self._steps.end(step):
            request, stop = scheduled.request, scheduled.stop
            if scheduled.drafts:
                stop = self.holdings.settle_drafts(scheduled, accepted.get(request.id))
            if self.experts and not request.released:
                self.experts.record(scheduled, stop, experts)
            current = request.epoch == self.holdings.epoch and not request.released
            if current and request.access.write:
                self.holdings.index(request, stop // self._unit)
            if self.states:
                self.states.after(scheduled, request.node if current else None)
            if request.local and not request.released:
                self.holdings.leave_local(request, stop)
        if self._steps.waiting:
            self._steps.lift(step)

    # --- requests ---

    def admit(
        self,
        request_id: str,
        tokens: Tokens,
        *,
        namespace: Namespace = DEFAULT_NAMESPACE,
        spans: Sequence[Span] = NO_SPANS,
        compute: int | None = None,
        access: Access = ALLOWED,
        resumed: bool = False,
    ) -> Admission | Refusal:
        """Reuse the longest valid prefix and make room for `compute` tokens after it (all: None).

        The last token is always computed (T1). Raises IdentityError for malformed input (H8).
        """
        request = Live(request_id, tokens, namespace, spans, self._unit)
        self.check_admission(request, compute)
        if not self._caching:
            access = DISABLED
        request.access = access
        hit = self.hits.find(request, request.prompt - 1) if access.read else NO_HIT
        stop = self.needs.place(request, hit, compute)
        if isinstance(stop, Refusal):
            if hit.checkpoint or hit.tail:
                whole = hit.tail is not None  # its own pin may be what blocks it (C2)
                hit = self.hits.whole(request, request.prompt - 1) if whole else NO_HIT
                stop = self.needs.place(request, hit, compute)
            if isinstance(stop, Refusal):
                return stop

        start = request.computed
        self.holdings.hold(request, hit)
        self.live[request_id] = request
        if access.read:
            self.statistics.count(request.prompt, start, resumed=resumed)
        admission = self._schedule(request, start, start, stop)
        return admission if hit.tail is None else self.holdings.copying(request, hit, admission)

    def check_admission(self, request: Live, compute: int | None) -> None:
        """Raise IdentityError, RuntimeError or ValueError for what cannot be admitted (H8)."""
        if not request.prompt or request.id in self.live:
            raise unfit(request)
        self._check_step(compute)

    def _check_step(self, compute: int | None) -> None:
        self._steps.check_open()
        if compute is not None and compute < 0:
            raise ValueError(f"compute {compute} must be a number of tokens, for example 512")

    def _schedule(self, request: Live, hit: int, start: int, stop: int) -> Admission:
        """Take room up to `stop` and let the newest step compute it."""
        units = -(-stop // self._unit)
        if units > request.units:
            self.holdings.grow(request, units)
        if not self.states and not request.spans:
            self._steps.schedule(request, stop)
            return Admission(hit, start, stop, request.table, request.access)
        state, saves = self.states.before(request, start, stop) if self.states else (None, [])
        self._steps.schedule(request, stop, saves)
        encode = to_encode(hit, start, stop, request.spans) if request.spans else ()
        return Admission(hit, start, stop, request.table, request.access, state, encode)

    def extend(
        self,
        request_id: str,
        tokens: Tokens = (),
        *,
        compute: int | None = None,
        drafts: Tokens = (),
    ) -> Admission | Refusal:
        """Append `tokens` and make room for `compute` of those not yet computed (all: None).

        A partial last block is filled before a new one is taken, so the table never shifts (T7).
        `drafts` follow `tokens`; they are computed whole, and kept or not by `end_step` (X5).
        """
        self._check_step(compute)
        request = self.live[request_id]
        if request.drafts:
            raise RuntimeError(f"request {request_id!r} has drafts in flight; end their step first")
        start, before = request.computed, request.tokens
        if tokens:
            request.tokens = request.tokens + token_bytes(tokens)
        if drafts:
            more = token_bytes(drafts)
            request.tokens, request.drafts = request.tokens + more, len(more) // TOKEN_BYTES
        stop = self.needs.stop(request, compute)
        refusal = self.needs.refuse_next(request, stop)
        if refusal:
            request.tokens, request.drafts = before, 0
            return refusal
        return self._schedule(request, 0, start, stop)

    def release(self, request_id: str) -> Ids:
        """Finish, cancel or preempt a request; idempotent (B2).

        Returns its table of full attention. If its last step is in flight, its blocks are handed
        out again only after that step (B6).
        """
        request = self.live.pop(request_id, None)
        if request is None:
            return array("i")
        self.holdings.release(request)
        return request.table

    # --- pins, eviction, reset ---

    def pin(
        self,
        pin_id: str,
        tokens: Tokens,
        *,
        namespace: Namespace = DEFAULT_NAMESPACE,
        spans: Sequence[Span] = NO_SPANS,
    ) -> int:
        """Hold the cached prefix of `tokens` until `unpin`; returns the tokens held (B2)."""
        pin = Live(pin_id, tokens, namespace, spans, self._unit)
        hit = self.hits.whole(pin, pin.prompt)
        if hit.units and pin_id not in self.pins:
            pin.computed = hit.units * self._unit
            self.holdings.hold(pin, hit)
            pin.tokens = b""  # it holds units, and keeps no buffer of its caller alive (T4)
            self.pins[pin_id] = pin
        return hit.units * self._unit

    def unpin(self, pin_id: str) -> Ids:
        """Drop a pin; idempotent. Returns the ids of full attention that it held (B2)."""
        pin = self.pins.pop(pin_id, None)
        if pin is None:
            return array("i")
        self.holdings.release(pin)
        return pin.table

    def evict(self, count: int) -> Ids:
        """Forget `count` cached-only blocks in eviction order, or all; returns them (B3)."""
        return self.residency.evict(count)

    def reset(self) -> None:
        """Begin a new epoch: nothing computed so far is ever reused (H6)."""
        self.holdings.epoch += 1
        self.residency.clear()
        self.statistics.reset()
        if self.events:
            self.events.clear(self.holdings.epoch)

    # --- questions ---

    def lookup(
        self,
        tokens: Tokens,
        *,
        namespace: Namespace = DEFAULT_NAMESPACE,
        spans: Sequence[Span] = NO_SPANS,
    ) -> int:
        """Return the tokens that a request would hit now; changes nothing (T1)."""
        request = Live("", tokens, namespace, spans, self._unit)
        return self.hits.find(request, request.prompt - 1).tokens(self._unit)

    def usage(self) -> Usage:
        """Count blocks by owner, also while steps are in flight (B7)."""
        free, idle = self.pool.num_free, self.residency.num_idle
        return Usage(free, self.pool.num_blocks - 1 - free - idle, idle)

    def tables(self, request_id: str) -> list[Ids]:
        """Return the block ids of each group for a request or pin, null where it sees nothing (X4).

        Of a state, those that it runs in.
        """
        request = self.live.get(request_id) or self.pins[request_id]
        state = self.states.ids(request) if self.states else array("i")
        return self._tables.of([request.table, *map(_IDS, request.local), state])

    def batch(self, request_ids: Sequence[str]) -> list[BatchTable]:
        """Return the padded kernel-block tables of each group, [requests, width] (K3, K6)."""
        rows = [self.tables(request_id) for request_id in request_ids]
        groups = enumerate(self.config.layout.groups)
        return [expand(pad([row[g] for row in rows]), config.kernel_ratio) for g, config in groups]

    def expert_rows(self, request_id: str) -> Recorded:
        """Return the experts of every token but the last, and which are missing (R2)."""
        assert self.experts is not None, "return_routed_experts is off"
        return self.experts.recorded(self.live[request_id])

    def drain_events(self) -> list[CacheEvent]:
        """Return the events since the last call, oldest first (V4)."""
        return self.events.drain() if self.events else []
