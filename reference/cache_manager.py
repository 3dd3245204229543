"""The cache manager: admits, extends and releases requests over one group of blocks.

    admit   match -> does it fit? -> hold the hit -> take new blocks       (B4, B5, T1)
    end_step      -> index the full blocks the step computed, share equal  (T2)
    release       -> scratch to the pool, cached blocks to the idle order  (B2, B3)

Block i of a request's table is indexed (part of a tree node that the request holds) for
i < `indexed`, and scratch of this request alone from there on.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial

from kvproof.reference.access import ALLOWED, DISABLED, Access
from kvproof.reference.block_pool import BlockPool, Ids
from kvproof.reference.block_table import BatchTable, expand, pad
from kvproof.reference.config import CacheConfig
from kvproof.reference.events import CacheEvent, EventLog
from kvproof.reference.identity import (
    DEFAULT_NAMESPACE,
    PLAIN,
    TOKEN_BYTES,
    IdentityError,
    Namespace,
    Span,
    Tokens,
    check_spans,
    segments,
    token_bytes,
)
from kvproof.reference.metrics import HitStatistics
from kvproof.reference.prefix_trie import PrefixTrie
from kvproof.reference.requests import Admission, Live, Refusal, Usage
from kvproof.reference.steps import Steps
from kvproof.reference.trie_node import Match, Node

GROUP = 0
"""The only group so far; part of every index key (H7)."""
NO_SPANS: tuple[Span, ...] = ()
NO_MATCH = Match(None, 0, 0)


class CacheManager:
    """One group of full-attention blocks with prefix reuse. Single-threaded."""

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks)
        self.statistics = HitStatistics(config.hit_rate_window)
        self.events = EventLog(config) if config.record_events else None
        self.trie = PrefixTrie(config.block_size, self.events.on_change if self.events else None)
        self.epoch = 0
        self.live: dict[str, Live] = {}
        self.pins: dict[str, Node] = {}
        self.leaving: list[Live] = []
        """Released requests whose last step is in flight."""
        self.retired: list[Ids] = []
        """Blocks replaced by equal ones while a step in flight may read them."""
        self._steps = Steps()
        self._scratch = 0
        """Held blocks that are not indexed."""

    def begin_step(self) -> int:
        """Open a step; requests admitted or extended from now on are computed in it."""
        return self._steps.begin()

    def end_step(self, step: int) -> None:
        """Index what the step computed (T2) and lift the fence of what it may have read (B6).

        Steps end oldest first; raises RuntimeError otherwise.
        """
        for request, computed in self._steps.end(step):
            if request.access.write and request.epoch == self.epoch and not request.released:
                self._index(request, computed // self.config.block_size)
        self._steps.lift(step)

    def _index(self, request: Live, full: int) -> None:
        first = request.indexed
        if full <= first:
            return
        found = self.trie.insert(
            request.node, request.tokens, request.segments, request.table[:full], first
        )
        request.node, request.indexed = found.node, full
        self._scratch -= full - first
        for start, ids in found.shared:
            self._replace(request, start, ids)

    def _replace(self, request: Live, start: int, ids: Ids) -> None:
        """Use blocks that exist already instead of equal ones just computed (T2)."""
        own = request.table[start : start + len(ids)]
        request.table[start : start + len(ids)] = ids
        self._scratch += len(own)
        if self._steps.runs(request.last_step):
            self.retired.append(own)
            self._steps.after(request.last_step, partial(self._give_retired, own))
        else:
            self._give(own)

    def _give_retired(self, own: Ids) -> None:
        self.retired.remove(own)
        self._give(own)

    def _give(self, ids: Ids) -> None:
        self._scratch -= len(ids)
        self.pool.give(ids)

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
        """Reuse the longest cached prefix and make room for `compute` tokens after it (all: None).

        The last token is always computed (T1). Raises IdentityError for malformed input (H8).
        """
        data = token_bytes(tokens)
        count, size = len(data) // TOKEN_BYTES, self.config.block_size
        self._check(request_id, count, spans)
        self._check_step(compute)
        cuts = segments(spans, size) if spans else PLAIN
        root = (GROUP, namespace)
        if not self.config.enable_prefix_caching:
            access = DISABLED
        match = self.trie.match(root, data, cuts, (count - 1) // size) if access.read else NO_MATCH
        hit = match.blocks * size
        stop = count if compute is None else min(count, hit + compute)
        refusal = self._refuse(count, match, -(-stop // size) - match.blocks)
        if refusal:
            return refusal

        request = Live()
        request.node = self.trie.hold(match, root)
        request.table = request.node.table() + self._take(-(-stop // size) - match.blocks)
        request.tokens, request.segments, request.access = data, cuts, access
        request.indexed, request.epoch, request.released = match.blocks, self.epoch, False
        self.live[request_id] = request
        self._steps.schedule(request, stop)
        if access.read:
            (self.statistics.count_resumed if resumed else self.statistics.count)(count, hit)
        return Admission(hit, stop, request.table, access)

    def _check(self, request_id: str, count: int, spans: Sequence[Span]) -> None:
        if not count:
            raise IdentityError(f"request {request_id!r} has no tokens")
        if request_id in self.live:
            raise IdentityError(f"request {request_id!r} is already admitted; release it first")
        if spans:
            check_spans(spans, count)

    def _check_step(self, compute: int | None) -> None:
        self._steps.check_open()
        if compute is not None and compute < 0:
            raise ValueError(f"compute {compute} must be a number of tokens, for example 512")

    def _refuse(self, count: int, match: Match, needed: int) -> Refusal | None:
        capacity, whole = self.pool.num_blocks - 1, -(-count // self.config.block_size)
        if whole > capacity:
            return Refusal("never_fits", whole, capacity)
        available = self.pool.num_free + self.trie.num_idle - self.trie.idle_blocks(match)
        return Refusal("no_space", needed, available) if needed > available else None

    def _take(self, count: int) -> Ids:
        """Take scratch first, then evict (B3). The caller has asked whether they exist."""
        scratch = min(count, self.pool.num_free)
        self._scratch += count
        ids = self.pool.take(scratch)
        return ids + self.trie.evict(count - scratch) if count > scratch else ids

    def extend(
        self, request_id: str, tokens: Tokens = (), *, compute: int | None = None
    ) -> Admission | Refusal:
        """Append `tokens` and make room for `compute` of those not yet computed (all: None).

        A partial last block is filled before a new one is taken, so the table never shifts (T7).
        """
        self._check_step(compute)
        request = self.live[request_id]
        known = request.tokens + token_bytes(tokens) if tokens else request.tokens
        start, count, size = request.computed, len(known) // TOKEN_BYTES, self.config.block_size
        stop = count if compute is None else min(count, start + compute)
        needed = -(-stop // size) - len(request.table)
        refusal = self._refuse(count, NO_MATCH, needed)
        if refusal:
            return refusal
        request.tokens = known
        request.table.extend(self._take(max(needed, 0)))
        self._steps.schedule(request, stop)
        return Admission(start, stop, request.table, request.access)

    def release(self, request_id: str) -> Ids:
        """Finish, cancel or preempt a request; idempotent (B2).

        Returns the blocks it held, in table order. If its last step is in flight they are handed
        out again only after that step (B6).
        """
        request = self.live.pop(request_id, None)
        if request is None:
            return array("i")
        request.released = True
        if self._steps.runs(request.last_step):
            self.leaving.append(request)
            self._steps.after(request.last_step, partial(self._leave, request))
        else:
            self._drop(request)
        return request.table

    def _leave(self, request: Live) -> None:
        self.leaving.remove(request)
        self._drop(request)

    def _drop(self, request: Live) -> None:
        self._give(self.trie.release(request.node))
        self._give(request.table[request.indexed :])

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
        data = token_bytes(tokens)
        check_spans(spans, len(data) // TOKEN_BYTES)
        size, root = self.config.block_size, (GROUP, namespace)
        limit = len(data) // TOKEN_BYTES // size
        match = self.trie.match(root, data, segments(spans, size), limit)
        if match.blocks and pin_id not in self.pins:
            self.pins[pin_id] = self.trie.hold(match, root)
        return match.blocks * size

    def unpin(self, pin_id: str) -> Ids:
        """Drop a pin; idempotent. Returns the blocks it held, in position order."""
        node = self.pins.pop(pin_id, None)
        if node is None:
            return array("i")
        ids = node.table()
        self._give(self.trie.release(node))
        return ids

    def evict(self, count: int) -> Ids:
        """Forget up to `count` cached-only blocks in eviction order; returns them (B3)."""
        victims = self.trie.evict(count)
        self.pool.give(victims[::-1])
        return victims

    def reset(self) -> None:
        """Begin a new epoch: nothing computed so far is ever reused (H6)."""
        self.epoch += 1
        self._scratch += self.trie.num_cached
        self._give(self.trie.clear())
        self.statistics.reset()
        if self.events:
            self.events.clear(self.epoch)

    # --- questions ---

    def lookup(
        self,
        tokens: Tokens,
        *,
        namespace: Namespace = DEFAULT_NAMESPACE,
        spans: Sequence[Span] = NO_SPANS,
    ) -> int:
        """Return the tokens that a request would hit now; changes nothing (T1)."""
        data, size = token_bytes(tokens), self.config.block_size
        check_spans(spans, len(data) // TOKEN_BYTES)
        limit = (len(data) // TOKEN_BYTES - 1) // size
        root = (GROUP, namespace)
        return self.trie.match(root, data, segments(spans, size), limit).blocks * size

    def usage(self) -> Usage:
        """Count blocks by owner, also while steps are in flight (B7)."""
        held = self._scratch + self.trie.num_cached - self.trie.num_idle
        return Usage(self.pool.num_free, held, self.trie.num_idle)

    def batch(self, request_ids: Sequence[str]) -> BatchTable:
        """Return the padded kernel-block tables of a batch, [requests, width] (K3)."""
        tables = [self.live[request_id].table for request_id in request_ids]
        return expand(pad(tables), self.config.kernel_ratio)

    def drain_events(self) -> list[CacheEvent]:
        """Return the events since the last call, oldest first (V4)."""
        return self.events.drain() if self.events else []
