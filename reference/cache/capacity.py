"""What a step needs, where it ends, and whether there is room (B4, B8, M3)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from kvproof.reference.cache.eviction import Residency
from kvproof.reference.cache.request_state import Live, Refusal
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.identity import TOKEN_BYTES, Span
from kvproof.reference.core.media_spans import chunk_stop
from kvproof.reference.prefix.node import Match


class Needs:
    """Room that requests ask for, against room that there is; changes nothing."""

    def __init__(self, config: CacheConfig, residency: Residency) -> None:
        self._residency = residency
        self._pool = residency.pool
        self._unit = residency.unit
        self._capacity = config.num_blocks - 1
        self._full_width = config.layout.full.width
        self._row_width = residency.row_width
        self._state_blocks = residency.state_blocks
        spare, width = self._capacity - self._state_blocks, self._row_width
        self._surely = spare // width * self._unit if width else sys.maxsize if spare >= 0 else -1
        """Tokens of a request that the empty pool could hold even if no window let go."""
        self._rows = residency.states is not None and not residency.state_blocks
        self._rules = config.layout.local
        self._chunks = sorted({rule.size for rule in self._rules if rule.kind == "chunk"})

    def place(self, request: Live, hit: Match, compute: int | None) -> int | Refusal:
        """Let a request begin behind `hit`; returns where its first step would end, or why not.

        What it hits itself is no room for it (B5).
        """
        unit, count = self._unit, request.prompt
        units = hit.units
        request.computed = start = units * unit + hit.tail.tokens if hit.tail else units * unit
        request.junction = hit.junction
        stop = count if compute is None else min(count, start + compute)
        if request.spans and stop > start:
            stop = chunk_stop(start, stop, request.spans)
        refusal = None
        if count > self._surely:
            refusal = self.fits(count, request.spans)
        if self._rows and not refusal:
            refusal = self._refuse_rows(1, hit)
        if refusal:
            return refusal
        needed = (-(-stop // unit) - units) * self._row_width + self._state_blocks
        if needed <= self._pool.num_free:
            return stop
        residency = self._residency
        available = self._pool.num_free + residency.num_idle
        available -= residency.idle_blocks(hit, hit.checkpoint)
        return Refusal("no_space", needed, available) if needed > available else stop

    def stop(self, request: Live, compute: int | None) -> int:
        """Return where the next step of a request ends: all known tokens, or about `compute` (M3).

        Media spans are never split.
        """
        start, count = request.computed, len(request.tokens) // TOKEN_BYTES
        stop = count if compute is None else min(count, start + compute)
        if stop <= start or request.drafts or not request.spans:
            return stop
        return chunk_stop(start, stop, request.spans)

    def _refuse_rows(self, needed: int, hit: Match | None) -> Refusal | None:
        """Refuse for want of rows in a separate pool; checkpoints without pin make room (S5)."""
        states = self._residency.states
        assert states is not None
        available = states.home.num_free + states.num_ready
        if hit:
            pinned = hit.checkpoint is not None and not hit.checkpoint.restores
            available = min(available - pinned, states.num_startable)
        return Refusal("no_state_row", needed, available) if needed > available else None

    def refuse_next(self, request: Live, stop: int) -> Refusal | None:
        """Refuse a further step of a request that runs (B4, B8)."""
        residency = self._residency
        if len(request.tokens) > request.prompt * TOKEN_BYTES:
            refusal = self.fits(len(request.tokens) // TOKEN_BYTES, request.spans)
            if refusal:
                return refusal
        needed = max(0, -(-stop // self._unit) - request.units) * residency.row_width
        if request.drafts and residency.states:
            needed += request.drafts * residency.state_blocks
            refusal = None if residency.state_blocks else self._refuse_rows(request.drafts, None)
            if refusal:
                return refusal
        if needed <= self._pool.num_free:
            return None
        available = residency.pool.num_free + residency.num_idle
        return Refusal("no_space", needed, available) if needed > available else None

    def fits(self, count: int, spans: Sequence[Span] = ()) -> Refusal | None:
        """Refuse a request of `count` tokens that not even the empty pool could hold (B8).

        It may be computed token by token, but for its spans.
        """
        if count <= self._surely:
            return None
        last = (count - 1) // self._unit * self._unit
        needed = self._step(last, last + 1)
        if self._chunks or spans:
            needed = max([needed, *(self._step(*step) for step in self._peaks(count, spans))])
        needed += self._state_blocks
        return Refusal("never_fits", needed, self._capacity) if needed > self._capacity else None

    def _peaks(self, count: int, spans: Sequence[Span]) -> Iterable[tuple[int, int]]:
        """Yield steps that may need more than the first token of the last unit.

        Those are first tokens of units at the ends of chunks, and spans.
        """
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
