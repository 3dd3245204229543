"""How long a hit is: one length that every group, span and option of the request allows (X1-X3).

Each limit is a *clamp*: it maps a length to the largest length that is valid for it and not above.
The lengths valid for one limit are a set that holds 0, so its clamp never raises a length, keeps
the order of lengths, and leaves valid lengths alone.

`fixpoint` applies one clamp after the other until all leave the length alone. Let L be the longest
length valid for all. No clamp f passes below it: from length >= L follows f(length) >= f(L) = L. A
length that all clamps leave alone is valid for all, hence at most L. So the end is L, for any
number, mix and order of clamps, and it is reached because every round but the last lowers an
integer that is at least 0. Lengths are tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TypeAlias

from msgspec.structs import replace

from kvproof.reference.cache.eviction import EvictionPolicy
from kvproof.reference.cache.request_state import RequestState
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.identity import TOKEN_BYTES, Span
from kvproof.reference.prefix.trie import Match, Node
from kvproof.reference.prefix.window_blocks import WindowBlocks

Clamp: TypeAlias = Callable[[int], int]
"""Largest valid length that is not above the given one, in tokens; 0 is always valid."""


def fixpoint(limit: int, clamps: Sequence[Clamp]) -> int:
    """Return the longest length <= `limit` that every clamp leaves alone (X2)."""
    length = limit
    while True:
        before = length
        for clamp in clamps:
            length = clamp(length)
        if length == before:
            return length


def outside_spans(spans: Sequence[Span]) -> Clamp:
    """Never strictly inside a span (M2). Spans are in order and do not overlap."""
    starts = [span.start for span in spans]
    stops = [span.start + span.length for span in spans]

    def clamp(length: int) -> int:
        index = bisect_left(starts, length) - 1
        return starts[index] if index >= 0 and length < stops[index] else length

    return clamp


def draft_lookahead(clamp: Clamp, *, unit: int, limit: int) -> Clamp:
    """Draft group (X3): the length and one unit more must be valid, up to `limit`.

    The draft model runs one position ahead, so the last unit of the match is computed again.
    Several draft groups cost one unit together, because each looks ahead of the same length.
    A `state` group is never wrapped: its checkpoint stands at the length itself.
    """

    def shifted(length: int) -> int:
        return max(0, clamp(min(length + unit, limit)) - unit)

    return lambda length: fixpoint(length, (clamp, shifted))


class HitLength:
    """Shortens a match in the index to the longest length that is valid for all (X2)."""

    def __init__(self, config: CacheConfig, eviction: EvictionPolicy) -> None:
        layout = config.layout
        self._unit = eviction.unit
        self._entry = layout.entry
        self._width = layout.full.width
        self._trie = eviction.trie
        self._full_draft = layout.full_draft
        self._any_draft = any(group.draft for group in layout.groups)
        self._experts = eviction.experts if config.require_cached_experts else None
        self._windows = eviction.windows
        self._checkpoints = eviction.checkpoints
        self._partial = eviction.partial
        self._special = self._any_draft or self._experts is not None
        others = (self._windows, eviction.states, self._full_draft, self._experts)
        self._trivial = not any(others)
        """Every match is a hit, unless it ends inside a span."""

    def find(self, request: RequestState, most: int) -> Match:
        """Return the longest valid hit of at most `most` tokens (T1, T6, X2)."""
        match = self._trie.match(
            request.namespace, bytes(request.tokens), request.segments, most // self._unit
        )
        if self._partial is not None:
            return self._with_partial_block(request, match, most)
        if (self._trivial and not request.spans) or match.node is None or not match.units:
            return match
        return self._shorten(match, match.node, request.spans)

    def whole_units(self, request: RequestState, most: int) -> Match:
        """Return the longest valid hit of whole units (X2)."""
        units = most // self._unit
        match = self._trie.match(request.namespace, bytes(request.tokens), request.segments, units)
        if match.node is None or not match.units:
            return match
        return self._shorten(match, match.node, request.spans)

    def _shorten(self, match: Match, node: Node, spans: Sequence[Span]) -> Match:
        length = limit = match.units * self._unit
        clamps: Sequence[Clamp] = ()
        if spans or self._special:
            clamps = [clamp for _, clamp in self.clamps(node, limit, spans)]
        checkpoint = None
        while True:  # as `fixpoint` does, without a closure for each clamp
            before = length
            if clamps:
                length = fixpoint(length, clamps)
            else:
                for windows in self._windows:
                    length = windows.clamp(node, length)
            if self._checkpoints:
                checkpoint = self._checkpoints.last(node, length)
                length = checkpoint.tokens if checkpoint else 0
            if length == before:
                break
        if length == limit:
            return Match(node, match.inside, match.units, checkpoint)
        cut = match.shortened(length // self._unit)
        divergence = self._divergence(limit, spans) if self._checkpoints else 0
        return Match(cut.node, cut.inside, cut.units, checkpoint, divergence)

    def _divergence(self, limit: int, spans: Sequence[Span]) -> int:
        """Return where an equal request could go on from a state, if one is saved there (S8)."""
        length = limit - self._unit if self._any_draft else limit
        if spans:
            length = fixpoint(length, [self._aligned(outside_spans(spans))])
        return length

    def clamps(self, node: Node, limit: int, spans: Sequence[Span]) -> list[tuple[str, Clamp]]:
        """Return name and clamp of each limit but the state, on the path of `node` (X1, X3, M2)."""
        clamps: list[tuple[str, Clamp]] = [
            (windows.rule.kind, self._visible(windows, node, limit)) for windows in self._windows
        ]
        if self._full_draft:
            last = max(0, limit - self._unit)
            clamps.append(("draft", lambda length: min(length, last)))
        if spans:
            clamps.append(("span", self._aligned(outside_spans(spans))))
        if self._experts:
            recorded = self._experts.clamp(node, limit)
            clamps.append(("experts", lambda length: min(length, recorded)))
        return clamps

    def _visible(self, windows: WindowBlocks, node: Node, limit: int) -> Clamp:
        clamp: Clamp = partial(windows.clamp, node)
        if not windows.rule.draft:
            return clamp
        return draft_lookahead(clamp, unit=self._unit, limit=limit)

    def _aligned(self, clamp: Clamp) -> Clamp:
        unit = self._unit
        return lambda length: clamp(length) // unit * unit

    # --- hits that end inside a unit (T6): models of nothing but full attention ---

    def _with_partial_block(self, request: RequestState, match: Match, most: int) -> Match:
        """Return the longest valid hit of any length (T1, T6, M2)."""

        def cached(length: int) -> int:
            return self._cut_at(request, match, length).tokens(self._unit)

        spans = request.spans
        clamps: list[Clamp] = [cached, outside_spans(spans)] if spans else [cached]
        if self._entry > 1:
            clamps.append(self._whole_entries)
        return self._cut_at(request, match, fixpoint(most, clamps))

    def _whole_entries(self, length: int) -> int:
        """Never inside an entry: what its first tokens were made of is gone (Q1)."""
        return length // self._entry * self._entry

    def _cut_at(self, request: RequestState, match: Match, length: int) -> Match:
        assert self._partial is not None
        hit = match.shortened(min(length // self._unit, match.units))
        start = hit.units * self._unit
        stop = min(length, start + self._unit)
        wanted = bytes(request.tokens[start * TOKEN_BYTES : stop * TOKEN_BYTES])
        parent = self._parent(request, hit)
        found = self._partial.find(parent, wanted, request.spans, start=start)
        return replace(hit, partial=found)

    def _parent(self, request: RequestState, hit: Match) -> Hashable:
        if not hit.units:
            return request.namespace
        assert hit.node is not None
        return hit.node.blocks[hit.inside * self._width - 1]
