"""The cache manager: admits, extends and releases requests over all groups of one model.

    admit      match -> longest valid hit -> does it fit? -> lock the hit -> allocate new blocks
    end_step   cache the computed units, share equal ones, free blocks that no window sees
    release    uncached blocks go to the pool, cached ones become evictable

A request has a table for full attention and one for each class of windows and chunks. Unit i of a
table is in the index for i < `indexed`, and belongs to this request alone from there on.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Unpack

from numpy.typing import ArrayLike

from kvproof.reference.cache.allocator import CapacityCheck, RequestAllocator
from kvproof.reference.cache.cache_events import CacheEvent, EventLog
from kvproof.reference.cache.eviction import EvictionPolicy
from kvproof.reference.cache.hit_length import HitLength
from kvproof.reference.cache.hooks import CacheHooks
from kvproof.reference.cache.request_state import (
    Admission,
    AdmitOptions,
    AdmitRequest,
    Refusal,
    RequestState,
    StepFence,
    Usage,
    unfit,
)
from kvproof.reference.cache.routed_experts import Recorded
from kvproof.reference.core.attention_groups import GroupTables
from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.block_table import BatchTable, expand, pad
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.cache_policy import DISABLED
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
from kvproof.reference.prefix.trie import Match

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
        self.eviction = EvictionPolicy(config, self.events)
        self.pool = self.eviction.pool
        self.trie = self.eviction.trie
        self.hits = HitLength(config, self.eviction)
        self.capacity = CapacityCheck(config, self.eviction)
        self.live: dict[str, RequestState] = {}
        self.pins: dict[str, RequestState] = {}
        self._steps = StepFence()
        self._unit = self.eviction.unit
        self._caching = config.enable_prefix_caching
        self._tables = GroupTables(config.layout)
        self.hooks = hooks = CacheHooks()
        self._before, self._admitted = hooks.before_admission, hooks.admitted
        self._looked_up = hooks.looked_up
        self._begun, self._ended = hooks.step_begun, hooks.step_ended
        self.allocator = RequestAllocator(config, self.eviction, self._steps)
        self.states = self.allocator.states
        self.experts = self.eviction.experts

    @property
    def epoch(self) -> int:
        """Counts resets (H6)."""
        return self.allocator.epoch

    def begin_step(self) -> int:
        """Open a step; requests admitted or extended from now on are computed in it (S4)."""
        step = self._steps.begin()
        if self._begun:
            for begun in self._begun:
                begun(step)
        return step

    def end_step(
        self,
        step: int,
        *,
        accepted: Mapping[str, int] = NOTHING,
        experts: Mapping[str, ArrayLike] = NOTHING,
    ) -> None:
        """Index the tokens of the step (T2) and release the blocks that it may have read (B6).

        `accepted`: drafts that stay, by request id (default: all) (X5). `experts`: rows of the
        computed tokens, [tokens, layers, ranks] (R1). Steps end oldest first. Raises RuntimeError
        otherwise, and ValueError for malformed results, before anything changes.
        """
        if accepted or experts:
            self.allocator.check_results(self._steps.running(step), accepted, experts)
        for scheduled in self._steps.end(step):
            request, stop = scheduled.request, scheduled.stop
            if scheduled.drafts:
                stop = self.allocator.settle_drafts(scheduled, accepted.get(request.id))
            if self.experts and not request.released:
                self.experts.record(scheduled, stop, experts)
            current = request.epoch == self.allocator.epoch and not request.released
            if current and request.access.write:
                self.allocator.cache_units(request, stop // self._unit)
            if self.states:
                self.states.after(scheduled, request.node if current else None)
            if request.windows and not request.released:
                self.allocator.free_windows(request, stop)
        if self._steps.deferred:
            self._steps.run_deferred(step)
        if self._ended:
            for ended in self._ended:
                ended(step, accepted)

    # --- requests ---

    def admit(
        self, request: AdmitRequest | str, tokens: Tokens = (), **options: Unpack[AdmitOptions]
    ) -> Admission | Refusal:
        """Reuse the longest valid prefix and make room for the tokens to compute after it.

        Takes an `AdmitRequest`, or its fields. The last token is always computed (T1). Raises
        IdentityError for malformed input (H8).
        """
        if isinstance(request, str):
            request = AdmitRequest(request, tokens, **options)
        state = RequestState(
            request.id, request.tokens, request.namespace, request.spans, self._unit
        )
        if not state.prompt or state.id in self.live:
            raise unfit(state)
        self._check_step(request.compute)
        state.access = request.access if self._caching else DISABLED
        refusal = self._before_admission(request, state) if self._before else None
        answer = refusal or self._admit(request, state)
        if self._admitted:
            for admitted in self._admitted:
                admitted(request, answer)
        return answer

    def _check_step(self, compute: int | None) -> None:
        if not self._steps.open:
            raise self._steps.closed()
        if compute is not None and compute < 0:
            raise ValueError(f"compute {compute} must be a number of tokens, for example 512")

    def _before_admission(self, request: AdmitRequest, state: RequestState) -> Refusal | None:
        for before in self._before:
            refusal = before(request, state)
            if refusal:
                return refusal
        return None

    def _admit(self, request: AdmitRequest, state: RequestState) -> Admission | Refusal:
        hit = self.hits.find(state, state.prompt - 1) if state.access.read else NO_HIT
        stop = self.capacity.plan_admission(state, hit, request.compute)
        if isinstance(stop, Refusal):
            if hit.checkpoint or hit.partial:  # its own pin may be what blocks it (C2)
                whole = hit.partial is not None
                hit = self.hits.whole_units(state, state.prompt - 1) if whole else NO_HIT
                stop = self.capacity.plan_admission(state, hit, request.compute)
            if isinstance(stop, Refusal):
                return stop
        start = state.computed
        self.allocator.lock_hit(state, hit)
        self.live[state.id] = state
        if state.access.read:
            self.statistics.count(state.prompt, start, resumed=request.resumed)
        admission = self._schedule(state, start, start, stop)
        return (
            admission if hit.partial is None else self.allocator.with_copies(state, hit, admission)
        )

    def _schedule(self, request: RequestState, hit: int, start: int, stop: int) -> Admission:
        units = -(-stop // self._unit)
        if units > request.units:
            self.allocator.allocate(request, units)
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
        answer = self._extend(request, tokens, compute, drafts)
        for extended in self.hooks.extended:
            extended(request_id, answer)
        return answer

    def _extend(
        self, request: RequestState, tokens: Tokens, compute: int | None, drafts: Tokens
    ) -> Admission | Refusal:
        start, before = request.computed, len(request.tokens)
        if tokens or drafts:
            more, guessed = token_bytes(tokens), token_bytes(drafts) if drafts else b""
            if isinstance(request.tokens, bytes):
                request.tokens = bytearray(request.tokens)
            request.tokens += more + guessed
            request.drafts = len(guessed) // TOKEN_BYTES
        stop = self.capacity.step_end(request, compute)
        refusal = self.capacity.check_step(request, stop)
        if refusal:
            request.tokens, request.drafts = request.tokens[:before], 0
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
        self.allocator.free(request)
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
        pin = RequestState(pin_id, tokens, namespace, spans, self._unit)
        hit = self.hits.whole_units(pin, pin.prompt)
        if hit.units and pin_id not in self.pins:
            pin.computed = hit.units * self._unit
            self.allocator.lock_hit(pin, hit)
            pin.tokens = b""  # it holds units, and keeps no buffer of its caller alive (T4)
            self.pins[pin_id] = pin
        return hit.units * self._unit

    def unpin(self, pin_id: str) -> Ids:
        """Drop a pin; idempotent. Returns the ids of full attention that it held (B2)."""
        pin = self.pins.pop(pin_id, None)
        if pin is None:
            return array("i")
        self.allocator.free(pin)
        return pin.table

    def evict(self, count: int) -> Ids:
        """Forget `count` cached-only blocks in eviction order, or all; returns them (B3)."""
        return self.eviction.evict(count)

    def reset(self) -> None:
        """Begin a new epoch: nothing computed so far is ever reused (H6)."""
        self.allocator.epoch += 1
        self.eviction.clear()
        self.statistics.reset()
        if self.events:
            self.events.clear(self.allocator.epoch)
        for reset in self.hooks.reset:
            reset()

    # --- questions ---

    def lookup(
        self,
        tokens: Tokens,
        *,
        namespace: Namespace = DEFAULT_NAMESPACE,
        spans: Sequence[Span] = NO_SPANS,
    ) -> int:
        """Return the tokens that a request would hit now; changes nothing (T1)."""
        request = RequestState("", tokens, namespace, spans, self._unit)
        hit = self.hits.find(request, request.prompt - 1).tokens(self._unit)
        if self._looked_up:
            hit = max(hit, *(looked_up(request) for looked_up in self._looked_up))
        return hit

    def usage(self) -> Usage:
        """Count blocks by owner, also while steps are in flight (B7)."""
        free, idle = self.pool.num_free, self.eviction.num_evictable
        return Usage(free, self.pool.num_blocks - 1 - free - idle, idle)

    def tables(self, request_id: str) -> list[Ids]:
        """Return the block ids of each group for a request or pin, null where it sees nothing (X4).

        For a state group, the blocks that it runs in.
        """
        request = self.live.get(request_id) or self.pins[request_id]
        state = self.states.ids(request) if self.states else array("i")
        return self._tables.of([request.table, *map(_IDS, request.windows), state])

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
