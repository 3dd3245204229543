"""How long a hit is: what every group, every span and every wish of the request allow (X1-X3)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kvproof.reference.cache.eviction import Residency
from kvproof.reference.cache.request_state import Live
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.fixpoint import Floor, ahead, longest, outside
from kvproof.reference.core.identity import Span
from kvproof.reference.prefix.node import Match, Node
from kvproof.reference.prefix.window_blocks import LocalBlocks


class HitLength:
    """Cuts a match in the index down to what is valid for all (X2)."""

    def __init__(self, config: CacheConfig, residency: Residency) -> None:
        self._unit = residency.unit
        self._trie = residency.trie
        self._full_draft = config.layout.full_draft
        self._any_draft = any(group.draft for group in config.layout.groups)
        self._experts = residency.experts if config.require_cached_experts else None
        self._local = residency.local
        self._marks = residency.marks
        self._special = self._any_draft or self._experts is not None
        others = (residency.local, residency.states, self._full_draft, self._experts)
        self.trivial = not any(others)
        """Every match is a hit, unless it ends inside a span."""

    def find(self, request: Live, most: int) -> Match:
        """Return the longest valid hit of at most `most` tokens (T1, X2)."""
        match = self._trie.match(
            request.namespace, request.tokens, request.segments, most // self._unit
        )
        if (self.trivial and not request.spans) or match.node is None or not match.units:
            return match
        return self._cut(match, match.node, request.spans)

    def whole(self, request: Live, most: int) -> Match:
        """Return the longest valid hit of whole units."""
        return self.find(request, most)

    def _cut(self, match: Match, node: Node, spans: Sequence[Span]) -> Match:
        length = limit = match.units * self._unit
        floors: Sequence[Floor] = ()
        if spans or self._special:
            floors = [floor for _, floor in self.floors(node, limit, spans)]
        checkpoint = None
        while True:  # as `longest` does, without a closure for each floor
            before = length
            if floors:
                length = longest(length, floors)
            else:
                for local in self._local:
                    length = local.floor(node, length)
            if self._marks:
                checkpoint = self._marks.last(node, length)
                length = checkpoint.tokens if checkpoint else 0
            if length == before:
                break
        if length == limit:
            return Match(node, match.inside, match.units, checkpoint)
        cut = match.shortened(length // self._unit)
        junction = self._junction(limit, spans) if self._marks else 0
        return Match(cut.node, cut.inside, cut.units, checkpoint, junction)

    def _junction(self, limit: int, spans: Sequence[Span]) -> int:
        """Return where a twin that leaves the cached path here could go on from a state (S8)."""
        length = limit - self._unit if self._any_draft else limit
        if spans:
            length = longest(length, [self._aligned(outside(spans))])
        return length

    def floors(self, node: Node, limit: int, spans: Sequence[Span]) -> list[tuple[str, Floor]]:
        """Name each limit but the state with its floor on the path of `node` (X1, X3, M2)."""
        floors: list[tuple[str, Floor]] = [
            (local.rule.kind, self._seen(local, node, limit)) for local in self._local
        ]
        if self._full_draft:
            last = max(0, limit - self._unit)
            floors.append(("draft", lambda length: min(length, last)))
        if spans:
            floors.append(("span", self._aligned(outside(spans))))
        if self._experts:
            recorded = self._experts.floor(node, limit)
            floors.append(("experts", lambda length: min(length, recorded)))
        return floors

    def _seen(self, local: LocalBlocks, node: Node, limit: int) -> Floor:
        floor: Floor = partial(local.floor, node)
        return ahead(floor, unit=self._unit, limit=limit) if local.rule.draft else floor

    def _aligned(self, floor: Floor) -> Floor:
        unit = self._unit
        return lambda length: floor(length) // unit * unit
