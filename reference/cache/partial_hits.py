"""Hits that end inside a block: found, copied before the step writes, kept on leaving (T6).

An admission matches whole units, then the tail that goes on longest behind them; it holds the
tail, makes room, and tells what to copy. The tail is let go of when that step has ended. A request
that leaves while none of its steps is in flight leaves a tail of its own.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

from msgspec.structs import replace

from kvproof.reference.cache.eviction import Residency
from kvproof.reference.cache.hit_length import HitLength
from kvproof.reference.cache.request_state import Live
from kvproof.reference.cache.step_fence import Steps
from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.fixpoint import Floor, longest, outside
from kvproof.reference.core.identity import TOKEN_BYTES
from kvproof.reference.prefix.node import Match
from kvproof.reference.prefix.partial_blocks import PartialBlocks, PartialMatch, Tail


def hit_length(config: CacheConfig, residency: Residency) -> HitLength:
    """Return what finds hits: of whole units, or with a tail behind them."""
    if residency.tails is None:
        return HitLength(config, residency)
    return PartialHits(config, residency, residency.tails)


class PartialHits(HitLength):
    """Finds hits of any length."""

    def __init__(self, config: CacheConfig, residency: Residency, tails: PartialBlocks) -> None:
        super().__init__(config, residency)
        self._tails = tails
        self._width = config.layout.full.width

    def find(self, request: Live, most: int) -> Match:
        """Return the longest valid hit of at most `most` tokens (T1, T6, M2)."""
        match = self._trie.match(
            request.namespace, request.tokens, request.segments, most // self._unit
        )

        def cached(length: int) -> int:
            return self._at(request, match, length).tokens(self._unit)

        floors: list[Floor] = [cached, outside(request.spans)] if request.spans else [cached]
        return self._at(request, match, longest(most, floors))

    def whole(self, request: Live, most: int) -> Match:
        """Return the longest valid hit of whole units."""
        return super().find(request, most)

    def _at(self, request: Live, match: Match, length: int) -> Match:
        """Return the units of `match` up to `length`, and the tail that leads nearest to it."""
        hit = match.shortened(min(length // self._unit, match.units))
        start = hit.units * self._unit
        wanted = request.tokens[start * TOKEN_BYTES : min(length, start + self._unit) * TOKEN_BYTES]
        tail = self._tails.find(self._parent(request, hit), wanted, request.spans, start=start)
        return replace(hit, tail=tail)

    def _parent(self, request: Live, hit: Match) -> Hashable:
        if not hit.units:
            return request.namespace
        assert hit.node is not None
        return hit.node.blocks[hit.inside * self._width - 1]


class PartialSteps:
    """Moves tails between requests and their index."""

    def __init__(self, config: CacheConfig, residency: Residency, steps: Steps) -> None:
        assert residency.tails is not None
        self._tails = residency.tails
        self._pool = residency.pool
        self._steps = steps
        self._unit = config.layout.unit
        self._width = config.layout.full.width

    def hold(self, tail: Tail) -> None:
        """Keep what the newest step copies from until it has ended (B5, B6)."""
        self._tails.hold(tail)
        self._steps.after(self._steps.newest, partial(self._let_go, tail))

    def _let_go(self, tail: Tail) -> None:
        self._pool.give(self._tails.release(tail))

    def copies(self, request: Live, match: PartialMatch) -> tuple[tuple[int, int], ...]:
        """Return what is copied before the first step of a request, which has its room."""
        first = request.indexed * self._width
        return tuple(self._tails.copies(match, request.table[first : first + self._width]))

    def leave(self, request: Live, scratch: Ids, epoch: int) -> Ids:
        """Keep what `request` leaves behind its last full unit; returns what goes to the pool.

        `scratch` are its blocks behind that unit; no step of it is in flight.
        """
        start, stop = request.indexed * self._unit, request.computed
        if stop == start or request.epoch != epoch or not request.access.write:
            return scratch
        first = request.indexed * self._width
        parent: Hashable = request.table[first - 1] if first else request.namespace
        tokens = request.tokens[start * TOKEN_BYTES : stop * TOKEN_BYTES]
        own, unused = scratch[: self._width], scratch[self._width :]
        return unused + self._tails.insert(parent, tokens, request.spans, start=start, blocks=own)
