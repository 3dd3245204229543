"""Blocks of requests: is there room, and from hit to release (B2, B4, B8, T2, X4)."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial

import numpy.typing as npt
from msgspec.structs import replace

from kvproof.reference.cache.eviction import EvictionPolicy
from kvproof.reference.cache.request_state import (
    Admission,
    Refusal,
    RequestState,
    StepEntry,
    StepFence,
)
from kvproof.reference.cache.state_steps import StateSteps
from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.identity import TOKEN_BYTES, Span
from kvproof.reference.core.media_spans import chunk_stop
from kvproof.reference.prefix.partial_blocks import PartialBlock, PartialMatch
from kvproof.reference.prefix.trie import InsertedRange, Match


class CapacityCheck:
    """Blocks that requests need against blocks that there are; changes nothing."""

    def __init__(self, config: CacheConfig, eviction: EvictionPolicy) -> None:
        self._eviction = eviction
        self._pool = eviction.pool
        self._unit = eviction.unit
        self._full_width = config.layout.full.width
        self._row_width = eviction.row_width
        self._state_blocks = eviction.state_blocks
        self.resized(config.num_blocks)
        self._separate_states = eviction.states is not None and not eviction.state_blocks
        self._rules = config.layout.local
        self._chunks = sorted({rule.size for rule in self._rules if rule.kind == "chunk"})

    def resized(self, num_blocks: int) -> None:
        """Take a pool of `num_blocks` blocks, the null block included, as the one that there is."""
        self._capacity = num_blocks - 1
        spare, width = self._capacity - self._state_blocks, self._row_width
        self._always_fits = (
            spare // width * self._unit if width else sys.maxsize if spare >= 0 else -1
        )
        """Tokens of a request that the empty pool could hold even if no window let go."""

    def plan_admission(
        self, request: RequestState, hit: Match, compute: int | None
    ) -> int | Refusal:
        """Admit a request after `hit`; returns the end of its first step, or the refusal.

        The blocks of its own hit do not count as free room (B5).
        """
        unit, count = self._unit, request.prompt
        units = hit.units
        start = units * unit + hit.partial.tokens if hit.partial else units * unit
        request.computed, request.divergence = start, hit.divergence
        stop = count if compute is None else min(count, start + compute)
        if request.spans and stop > start:
            stop = chunk_stop(start, stop, request.spans)
        refusal = None
        if count > self._always_fits:
            refusal = self.fits(count, request.spans)
        if self._separate_states and not refusal:
            refusal = self._refuse_rows(1, hit)
        if refusal:
            return refusal
        needed = (-(-stop // unit) - units) * self._row_width + self._state_blocks
        if needed <= self._pool.num_free:
            return stop
        eviction = self._eviction
        available = self._pool.num_free + eviction.num_evictable
        available -= eviction.evictable_blocks(hit, hit.checkpoint)
        return Refusal("no_space", needed, available) if needed > available else stop

    def step_end(self, request: RequestState, compute: int | None) -> int:
        """Return the end of the next step: all known tokens or `compute` (M3); spans stay whole."""
        start, count = request.computed, len(request.tokens) // TOKEN_BYTES
        stop = count if compute is None else min(count, start + compute)
        if stop <= start or request.drafts or not request.spans:
            return stop
        return chunk_stop(start, stop, request.spans)

    def _refuse_rows(self, needed: int, hit: Match | None) -> Refusal | None:
        """Refuse for want of rows in a separate pool; checkpoints without pin make room (S5)."""
        states = self._eviction.states
        assert states is not None
        available = states.home.num_free + states.num_ready
        if hit:
            pinned = hit.checkpoint is not None and not hit.checkpoint.restores
            available = min(available - pinned, states.num_startable)
        return Refusal("no_state_row", needed, available) if needed > available else None

    def check_step(self, request: RequestState, stop: int) -> Refusal | None:
        """Refuse a further step of a request that runs (B4, B8)."""
        eviction = self._eviction
        if len(request.tokens) > request.prompt * TOKEN_BYTES:
            refusal = self.fits(len(request.tokens) // TOKEN_BYTES, request.spans)
            if refusal:
                return refusal
        needed = max(0, -(-stop // self._unit) - request.units) * eviction.row_width
        if request.drafts and eviction.states:
            needed += request.drafts * eviction.state_blocks
            refusal = None if eviction.state_blocks else self._refuse_rows(request.drafts, None)
            if refusal:
                return refusal
        if needed <= self._pool.num_free:
            return None
        available = eviction.pool.num_free + eviction.num_evictable
        return Refusal("no_space", needed, available) if needed > available else None

    def fits(self, count: int, spans: Sequence[Span] = ()) -> Refusal | None:
        """Refuse `count` tokens that not even the empty pool could hold, token by token (B8)."""
        if count <= self._always_fits:
            return None
        last = (count - 1) // self._unit * self._unit
        needed = self._step(last, last + 1)
        if self._chunks or spans:
            needed = max(
                [needed, *(self._step(*step) for step in self._largest_steps(count, spans))]
            )
        needed += self._state_blocks
        return Refusal("never_fits", needed, self._capacity) if needed > self._capacity else None

    def _largest_steps(self, count: int, spans: Sequence[Span]) -> Iterable[tuple[int, int]]:
        """Yield steps that may need more than their first token: from unit borders, and spans."""
        for size in self._chunks:
            for end in range(
                (count - 1) // size * size, max(0, count - 2 * self._chunks[-1]), -size
            ):
                first = (end - 1) // self._unit * self._unit
                yield first, first + 1
        if self._rules:
            yield from ((span.start, span.start + span.length) for span in spans)

    def _step(self, start: int, stop: int) -> int:
        """Count the blocks that a request holds while it computes [start, stop) (P2)."""
        units = -(-stop // self._unit)
        needed = units * self._full_width
        for rule in self._rules:
            needed += (units - rule.first_unit(start)) * rule.width
        return needed


class RequestAllocator:
    """Moves blocks between requests, the index and the pool (vLLM: single-type managers)."""

    def __init__(self, config: CacheConfig, eviction: EvictionPolicy, steps: StepFence) -> None:
        self._eviction = eviction
        self._pool = eviction.pool
        self._trie = eviction.trie
        self._windows = eviction.windows
        self._steps = steps
        self._width = config.layout.full.width
        self._row_width = eviction.row_width
        self._states = eviction.states
        self.states = StateSteps(config, eviction) if eviction.states else None
        self.partial = PartialBlockSteps(config, eviction, steps) if eviction.partial else None
        self._experts = eviction.experts
        self.epoch = 0
        self.releasing: list[RequestState] = []
        """Released requests whose last step is in flight."""
        self.duplicates: list[Ids] = []
        """Blocks replaced by equal ones while a step in flight may read them."""

    def lock_hit(self, request: RequestState, hit: Match) -> None:
        """Lock the hit in every group, before anything new is allocated (B5)."""
        request.epoch = self.epoch
        request.node = node = self._trie.lock(hit, request.namespace)
        request.table = node.table()
        request.units = request.indexed = hit.units
        if hit.partial and self.partial:
            self.partial.lock(hit.partial.block)
        if self._windows:
            request.windows = []
            for windows in self._windows:
                request.windows.append(windows.lock(node))
        if self._states and hit.checkpoint:
            self._states.pin_restore(hit.checkpoint, request)
        if self._experts:
            self._experts.start(request)

    def with_copies(self, request: RequestState, hit: Match, admission: Admission) -> Admission:
        """Add the copies that run before the first step writes after a hit (T6)."""
        assert self.partial
        assert hit.partial
        return replace(admission, copies=self.partial.copies(request, hit.partial))

    def allocate(self, request: RequestState, units: int) -> None:
        """Make every table `units` units long; the caller has checked that there is room."""
        missing = units - request.units
        request.units = units
        count, pool = missing * self._row_width, self._pool
        ids = pool.allocate(count) if count <= pool.num_free else self._eviction.allocate(count)
        if not request.windows:
            request.table += ids
            return
        used = missing * self._width
        request.table += ids[:used]
        for own in request.windows:
            first, used = used, used + missing * own.blocks.width
            own.ids += ids[first:used]

    def check_results(
        self,
        running: list[StepEntry],
        accepted: Mapping[str, int],
        experts: Mapping[str, npt.ArrayLike],
    ) -> None:
        """Raise ValueError for results that no step can have (B4)."""
        for scheduled in running:
            name, drafts = scheduled.request.id, scheduled.drafts
            if not 0 <= accepted.get(name, 0) <= drafts:
                raise ValueError(f"{accepted[name]} drafts of {name!r} accepted, it has {drafts}")
            if self._experts and name in experts and not scheduled.request.released:
                self._experts.check(scheduled, experts[name])

    def settle_drafts(self, scheduled: StepEntry, accepted: int | None) -> int:
        """Roll length and state back to the accepted drafts, all if None (X5)."""
        request, drafts = scheduled.request, scheduled.drafts
        kept = drafts if accepted is None else accepted
        stop = scheduled.stop - drafts + kept
        if self.states and not request.released:
            self.states.keep_draft(request, kept)
        request.tokens = request.tokens[: stop * TOKEN_BYTES]
        request.computed, request.drafts = stop, 0
        return stop

    def cache_units(self, request: RequestState, last: int) -> None:
        """Put the units up to `last`, which a step has computed, into the index (T2)."""
        if last <= request.indexed:
            return
        table, first = request.table, request.indexed
        ranges = self._trie.insert(
            request.node, request.tokens, request.segments, table, first, last
        )
        request.node, request.indexed = ranges[-1].node, last
        for each in ranges:
            if each.existed and self._width:
                self._replace(request, each)
        if self._experts:
            self._experts.index(request, ranges)
        for own in request.windows:
            duplicates = own.blocks.index(own, ranges)
            if duplicates:
                self._free_duplicate(request, duplicates)

    def _replace(self, request: RequestState, each: InsertedRange) -> None:
        """Use blocks that exist already instead of equal ones just computed (T2)."""
        span = slice(each.first * self._width, each.last * self._width)
        own = request.table[span]
        first = (each.first - each.node.start) * self._width  # the node may have grown since
        request.table[span] = each.node.blocks[first : first + len(own)]
        self._free_duplicate(request, own)

    def _free_duplicate(self, request: RequestState, ids: Ids) -> None:
        """Free blocks once no step of the request can read them (B6)."""
        if self._steps.runs(request.last_step):
            self.duplicates.append(ids)
            self._steps.run_after(request.last_step, partial(self._free_duplicates, ids))
        else:
            self._pool.free(ids)

    def _free_duplicates(self, ids: Ids) -> None:
        self.duplicates.remove(ids)
        self._pool.free(ids)

    def free_windows(self, request: RequestState, tokens: int) -> None:
        """Free the blocks that no step of the request from position `tokens` on sees (X4)."""
        for own in request.windows:
            blocks, before = own.blocks, own.first
            first = blocks.rule.first_unit(tokens)
            if first > before:
                freed = blocks.unlock(own, request.node, request.indexed, first)
                own.mask(before)
                if freed:
                    self._pool.free(freed)
        if request.epoch != self.epoch:
            self._free_orphaned(request)

    def _free_orphaned(self, request: RequestState) -> None:
        """Free the unused blocks on a path that a reset orphaned (H6)."""
        for windows in self._windows:
            self._pool.free(windows.evict_orphaned(request.node))

    def free(self, request: RequestState) -> None:
        """Unlock and free everything, once the last step of the request is done (B2, B6)."""
        request.released = True
        if self._steps.runs(request.last_step):
            self.releasing.append(request)
            self._steps.run_after(request.last_step, partial(self._free_now, request))
        elif self.partial:
            self._drop(request, self.partial.cache(request, self._uncached(request), self.epoch))
        else:
            self._drop(request, self._uncached(request))

    def _free_now(self, request: RequestState) -> None:
        self.releasing.remove(request)
        self._drop(request, self._uncached(request))

    def _uncached(self, request: RequestState) -> Ids:
        if request.units == request.indexed:
            return _NO_IDS
        return request.table[request.indexed * self._width :]

    def _drop(self, request: RequestState, uncached: Ids) -> None:
        """Unlock a path and free the rest, ends of chains first (B3)."""
        if request.epoch == self.epoch:
            self._trie.unlock(request.node)
        else:
            self._pool.free(self._trie.unlock_orphaned(request.node))
        if uncached:
            self._pool.free(uncached)
        for own in request.windows:
            blocks = own.blocks
            unseen = blocks.unlock(own, request.node, request.indexed, len(own.ids) // blocks.width)
            if unseen:
                self._pool.free(unseen)
        if request.epoch != self.epoch:
            self._free_orphaned(request)
        if self._states:
            self._states.release(request)
            if not self._row_width:
                self._eviction.prune(request.node)
        if self._experts:
            self._experts.release(request)


class PartialBlockSteps:
    """Moves partial last blocks between requests and their index (T6)."""

    def __init__(self, config: CacheConfig, eviction: EvictionPolicy, steps: StepFence) -> None:
        assert eviction.partial is not None
        self._index = eviction.partial
        self._pool = eviction.pool
        self._steps = steps
        self._unit = config.layout.unit
        self._width = config.layout.full.width

    def lock(self, block: PartialBlock) -> None:
        """Keep the source of the newest step's copies until that step has ended (B5, B6)."""
        self._index.lock(block)
        self._steps.run_after(self._steps.newest, partial(self._unlock, block))

    def _unlock(self, block: PartialBlock) -> None:
        self._pool.free(self._index.unlock(block))

    def copies(self, request: RequestState, match: PartialMatch) -> tuple[tuple[int, int], ...]:
        """Return the (source, destination) blocks to copy before a request's first step."""
        first = request.indexed * self._width
        return tuple(self._index.copies(match, request.table[first : first + self._width]))

    def cache(self, request: RequestState, uncached: Ids, epoch: int) -> Ids:
        """Keep the tokens after the last full unit in `uncached`; returns the blocks to free."""
        start, stop = request.indexed * self._unit, request.computed
        if stop == start or request.epoch != epoch or not request.access.write:
            return uncached
        first = request.indexed * self._width
        parent: Hashable = request.table[first - 1] if first else request.namespace
        tokens = bytes(request.tokens[start * TOKEN_BYTES : stop * TOKEN_BYTES])
        own, unused = uncached[: self._width], uncached[self._width :]
        return unused + self._index.insert(parent, tokens, request.spans, start=start, blocks=own)


_NO_IDS: Ids = array("i")
