"""transformers' continuous batching: `PagedAttentionCache` of `generate_batch`.

A step follows `Scheduler._process_candidates`: `search_prefix_match` for a new request,
`can_store_request_tokens`, the forward, then `mark_complete_blocks`. A request that does not fit is
deferred; all blocks without a holder are then evicted, as at the scheduler's safety margin. The
cache has one layer, on the CPU; no model runs.

Its ids count two sectors that are never allocated; they map to the null block.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

from kvproof.harness.adapters.engine_target import EngineTarget, Live, Step, Tables
from kvproof.harness.adapters.refusals import check_kernel_size, problem
from kvproof.harness.adapters.transformers.api import (
    check_drift,
    differences,
    new_cache,
    new_state,
    version,
)
from kvproof.harness.adapters.transformers.cycle import make_cycle
from kvproof.harness.contract.profile import InspectionProfile, PolicyProfile, Profile
from kvproof.harness.contract.provenance import declared
from kvproof.harness.contract.target import (
    Inspection,
    Refused,
    Released,
    Request,
    Scheduled,
    Table,
    TargetConfig,
    Usage,
)

__all__ = ["TransformersTarget", "differences", "make_cycle", "make_target"]

TRASH = 1
"""Ids before the first that is handed out, less the null block."""

_UNSUPPORTED = {
    "namespaces": "the hash of a block has its tokens and its parent only",
    "adapters": "the hash of a block has its tokens and its parent only",
    "salts": "the hash of a block has its tokens and its parent only",
    "keys": "as with salts",
    "embeddings": "requests have token ids",
    "spans": "generate_batch takes token ids, no media",
    "max_kernel_ratio": "one page size for allocation and attention",
    "groups": "windows share no prefix; recurrent, chunked and latent layers are refused",
    "no_read": "sharing is one setting for all requests",
    "no_store": "sharing is one setting for all requests",
    "pins": "no verb holds a cached prefix without a request",
    "evict": "evict_cached_blocks evicts every block without a holder",
    "batch": "rows of the table are written into the step's own tensors",
    "statistics": "hits are not counted",
    "events": "no events",
    "retained": "keys of the index are not counted",
    "drafts": "no speculative decoding",
    "experts": "experts are not returned",
    "in_flight_steps": "the processor fences, not the cache",
    "validates": "token ids have no identity to check",
    "eviction_order": "there is none: every block without a holder is evicted",
    "scratch_first": "room is made by evicting every block without a holder",
    "index": "one flat hash map: an entry may outlive the block before it",
}


@cache
def profile() -> Profile:
    """Profile of the installed release."""
    return Profile(
        engine="transformers",
        version=version(),
        block_sizes=(1, 2, 4, 16, 64, 256),
        adapters=False,
        salts=False,
        evict=False,
        lookup=True,
        unsupported=_UNSUPPORTED,
        provenance=declared(
            "match, allocate, arrival, publish, release, lookup, held count, cached count",
            refusal="the adapter compares what is needed with the room, and evicts for it",
            unknown_ids="an id that no request has is not passed on",
            reset="everything is evicted: there is no such call",
            busy="the adapter asks for an idle cache",
            kernel_tables="blocks are reported as their pages",
            free_count="counted as what is neither held nor cached",
        ),
        inspection=InspectionProfile(holders=True, state=True),
        policy=PolicyProfile(reset="idle", eviction_order="undeclared", index="flat"),
    )


class TransformersTarget(EngineTarget):
    """One `PagedAttentionCache` of one layer of full attention."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__(profile())
        self._cache = new_cache(config)
        (self._allocator,) = self._cache.cache_allocators.values()
        self._pool, self._ledger = self._cache.pool, self._allocator.ledger
        self._total = config.num_blocks - 1
        self._size, self._sharing = config.block_size, config.prefix_caching
        self._dropped: list[int] = []
        """Blocks that lost their hash since the last inspection."""

    # --- requests ---

    def admit(self, request: Request, compute: int | None = None) -> Scheduled | Refused:
        """As for a waiting request."""
        if invalid := problem(request, self._running):
            return Refused("invalid", detail=invalid)
        tokens = list(request.tokens)
        matched = self._allocator.match_prefix_blocks(tokens) if self._sharing else []
        hit = len(matched) * self._size
        count = min(len(tokens) - hit, len(tokens) if compute is None else compute)
        if count < 1:
            return Refused("invalid", detail="no token is to be computed")
        needed = -(-(hit + count) // self._size) - len(matched)
        if refused := self._make_room(needed, keep=matched):
            return refused
        state = new_state(request.id, tokens)
        if self._cache.search_prefix_match(request.id, tokens) != hit:
            raise RuntimeError(f"the match of request {request.id} is not {hit} tokens any more")
        state.position_offset = hit
        self._running[request.id] = state
        return self._scheduled(state, count, hit)

    def _make_room(self, needed: int, keep: list[int]) -> Refused | None:
        """Evict all blocks without a holder if that makes room; blocks of the hit stay."""
        self._pool.try_to_free_sectors()
        free = self._pool.num_free_sectors
        idle = len(self._ledger.cached_blocks.keys() - set(keep))
        if needed > free + idle:
            detail = f"{needed} blocks needed, {free + idle} of {self._total} free"
            reason = "never_fits" if needed + len(keep) > self._total else "no_space"
            return Refused(reason, needed, free + idle, detail)
        if needed > free:
            kept = [block for block in keep if block in self._ledger.cached_blocks]
            for block in kept:
                self._ledger.acquire(block)
            self._evict_all()
            for block in kept:
                self._ledger.release(block)
        return None

    def _evict_all(self) -> None:
        self._dropped += self._ledger.cached_blocks
        self._cache.evict_cached_blocks()
        self._pool.try_to_free_sectors()

    def _scheduled(self, state: Any, count: int, hit: int) -> Scheduled:
        if not self._cache.can_store_request_tokens(state, count):
            raise RuntimeError(f"request {state.request_id} does not fit although there is room")
        start = state.current_len()
        complete = self._cache.count_new_complete_blocks(state, count)
        state.position_offset += count
        step = self._numbered(state.request_id, state, complete)
        table = (self._table(state.request_id),)
        return Scheduled(step, hit, start, start + count, table, table)

    def _table(self, request_id: str) -> Table:
        return tuple(block - TRASH for block in self._allocator.block_table.get(request_id, ()))

    def _extend(
        self, live: Live, tokens: tuple[int, ...], compute: int | None
    ) -> Scheduled | Refused:
        """As for an active request."""
        native = live.native
        known = len(native.initial_tokens) + len(native.generated_tokens) + len(tokens)
        left = known - native.current_len()
        count = left if compute is None else min(left, compute)
        if count < 1:
            return Refused("invalid", detail="no token is left to compute")
        held = len(self._allocator.block_table[live.id])
        needed = -(-(native.current_len() + count) // self._size) - held
        if refused := self._make_room(max(0, needed), keep=[]):
            return refused
        native.generated_tokens.extend(tokens)
        return self._scheduled(native, count, 0)

    def _complete(self, done: Step) -> tuple[Tables, Tables]:
        """As after a forward: full blocks are indexed, equal ones are given up for those known."""
        self._cache.mark_complete_blocks(done.native, done.details)
        table = (self._table(done.id),)
        return table, table

    def _finish(self, live: Live) -> Tables:
        """As `Scheduler.finish_request`, and `clear_cancelled_requests`."""
        table = self._table(live.id)
        self._cache.free_blocks(live.id)
        return (table,)

    def _preempt(self, live: Live) -> Tables:
        """As a soft reset: blocks that only this request holds are not cached."""
        table, hashed = self._table(live.id), set(self._ledger.block_to_hash)
        self._cache.free_blocks(live.id, no_cache=True)
        self._dropped += sorted(hashed - self._ledger.block_to_hash.keys())
        return (table,)

    # --- the whole cache ---

    def reset(self) -> Released | Refused:
        """As between two runs of `generate_batch`: nothing may be running."""
        if self._running:
            return Refused("busy", detail=f"{len(self._running)} requests hold blocks")
        self._evict_all()
        self._dropped.clear()
        return Released()

    def lookup(self, request: Request) -> int:
        """Hit length of a request that is not admitted."""
        if not self._sharing:
            return 0
        return len(self._allocator.match_prefix_blocks(list(request.tokens))) * self._size

    def inspect(self) -> Inspection:
        """Holders as the ledger counts them: it has no entry for a block of one request."""
        tables, counts = self._allocator.block_table.values(), self._ledger.shared_ref_counts
        held = {block - TRASH: counts.get(block, 1) for table in tables for block in table}
        cached = len(self._ledger.cached_blocks)
        free = self._total - len(held) - cached
        usage, digest = Usage(self._total, free, len(held), cached), self._digest()
        dropped, self._dropped = (tuple(block - TRASH for block in self._dropped),), []
        return Inspection(usage, digest, held, dropped=dropped)

    def _digest(self) -> str:
        """Digest of all state that affects decisions, except the order of free sectors."""
        ledger = self._ledger
        state = (
            sorted(ledger.hash_to_block.items()),
            sorted(ledger.shared_ref_counts.items()),
            sorted(ledger.cached_blocks),
            sorted((name, list(table)) for name, table in self._allocator.block_table.items()),
            self._pool.num_free_sectors + self._pool.count_free_blocks(self._allocator.index),
            sorted(self._steps),
        )
        return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


def make_target(config: TargetConfig) -> TransformersTarget:
    """A fresh cache. Raises RuntimeError for another release of transformers than this is for."""
    check_drift()
    check_kernel_size(config, _UNSUPPORTED["max_kernel_ratio"])
    return TransformersTarget(config)
