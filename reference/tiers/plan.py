"""Longest possible hit if the objects in the tiers were loaded (X1-X3, S1, M2, R3).

It is the longest length that is valid for every group over the union of index and tiers, found as
every hit is: by clamps (`hit_length`). The objects that it takes from the tiers are its *needs*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from kvproof.reference.cache.eviction import EvictionPolicy
from kvproof.reference.cache.hit_length import (
    Clamp,
    HitLength,
    draft_lookahead,
    fixpoint,
    outside_spans,
)
from kvproof.reference.cache.request_state import RequestState
from kvproof.reference.core.attention_groups import BlockClass
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.prefix.trie import Match, Node
from kvproof.reference.tiers import object_key


class Need(NamedTuple):
    """One part of one unit of a request; `state` and `experts` follow or describe the unit."""

    part: str
    unit: int
    key: bytes


class Plan(NamedTuple):
    """Objects to load for one request; lengths in units."""

    match: Match
    length: int
    """Hit length after the load."""
    reach: int
    """Indexed length after the load: more than the hit with draft groups (X3)."""
    before: int
    """Tokens that are a hit without."""
    needs: tuple[Need, ...]

    @property
    def state(self) -> bool:
        """Return whether a recurrent state is loaded."""
        return any(need.part == object_key.STATE for need in self.needs)


WINDOW = 64
"""Objects that a plan asks a far store for at once: more than one, and not all of a long prompt."""


class Found(Protocol):
    """Objects in the tiers."""

    far: bool
    """Whether each question may go to another machine."""

    def expect(self, keys: list[bytes]) -> None:
        """Ask for many objects at once."""

    def there(self, key: bytes) -> bool:
        """Return whether a tier holds an object."""


class Planner:
    """Plans for the requests of one cache; changes nothing (T1)."""

    def __init__(self, config: CacheConfig, eviction: EvictionPolicy, hits: HitLength) -> None:
        self.eviction, self.hits = eviction, hits
        self.unit = eviction.unit
        self.full_width = config.layout.full.width
        self.full_draft = config.layout.full_draft
        groups = config.layout.groups
        self.any_draft = any(group.draft and group.kind != "state" for group in groups)
        self.strict = config.require_cached_experts

    def plan(
        self,
        request: RequestState,
        links: list[bytes],
        key: Callable[[bytes, str], bytes],
        found: Found,
    ) -> Plan | None:
        """Return the longest hit that needs the tiers, None if they would not help."""
        union = _Union(self, request, links, key, found)
        length = union.longest()
        before = self.hits.find(request, request.prompt - 1).tokens(self.unit)
        if length * self.unit <= before:
            return None
        reach = length + 1 if self.any_draft else length
        needs = (*union.needs(length, reach),)
        return Plan(union.match, length, reach, before, needs)


def visible(rule: BlockClass, length: int, reach: int) -> tuple[int, int]:
    """Return first and stop of the units of a class that a hit of `length` units needs.

    A draft class needs also what a hit of `reach` units would need (X3).
    """
    first = rule.first_unit(length * rule.unit)
    ahead_first = rule.first_unit(reach * rule.unit)
    if not rule.draft or ahead_first == reach:
        return first, length
    return min(first, ahead_first), reach


class _Union:
    def __init__(
        self,
        planner: Planner,
        request: RequestState,
        links: list[bytes],
        key: Callable[[bytes, str], bytes],
        found: Found,
    ) -> None:
        self._planner, self._request, self._eviction = planner, request, planner.eviction
        self._links, self._key, self._found = links, key, found
        self.match = self._eviction.trie.match(
            request.namespace, bytes(request.tokens), request.segments, len(links)
        )
        self._resident = [
            _resident(self.match, index) for index in range(len(planner.eviction.windows))
        ]
        self._units = self._known() if planner.full_width else self._proven()

    def _known(self) -> int:
        """Return the leading units whose full-attention blocks are in index or tiers."""
        units = self.match.units
        while units < len(self._links) and self._next(object_key.FULL, units, self.match.units):
            units += 1
        return units

    def _proven(self) -> int:
        """The same without full attention: the object of a unit proves all before it."""
        classes = range(len(self._eviction.windows))
        parts = (*map(object_key.local, classes), object_key.STATE)
        units = range(len(self._links), self.match.units, -1)
        proven = (n for n in units if any(self._has(part, n - 1) for part in parts))
        return next(proven, self.match.units)

    def _has(self, part: str, unit: int) -> bool:
        return self._found.there(self._key(self._links[unit], part))

    def _next(self, part: str, unit: int, first: int) -> bool:
        """Return the same for one unit after the other, from `first` on."""
        if (unit - first) % WINDOW == 0:
            self._expect(part, range(unit, min(unit + WINDOW, len(self._links))))
        return self._has(part, unit)

    def _expect(self, part: str, units: Iterable[int]) -> None:
        if self._found.far:
            self._found.expect([self._key(self._links[unit], part) for unit in units])

    def longest(self) -> int:
        """Return the longest valid length, in units (X2)."""
        unit = self._planner.unit
        limit = self._units * unit
        return fixpoint(limit, [*self._clamps(limit)]) // unit

    def _clamps(self, limit: int) -> Iterator[Clamp]:
        planner, unit = self._planner, self._planner.unit
        for index, windows in enumerate(self._eviction.windows):
            clamp = self._window(index)
            draft = windows.rule.draft
            yield draft_lookahead(clamp, unit=unit, limit=limit) if draft else clamp
        if planner.full_draft:
            yield lambda length: min(length, max(0, limit - unit))
        if self._request.spans:
            free = outside_spans(self._request.spans)
            yield lambda length: free(length) // unit * unit
        if planner.strict:
            recorded = self._recorded() * unit
            yield lambda length: min(length, recorded)
        if self._eviction.checkpoints is not None:
            yield self._state

    def _window(self, index: int) -> Clamp:
        rule, unit = self._eviction.windows[index].rule, self._planner.unit

        def last_absent(first: int, stop: int) -> tuple[int, int] | None:
            seen = range(stop - 1, first - 1, -1)
            self._expect(object_key.local(index), seen)
            absent = next((each for each in seen if not self._there(index, each)), None)
            return None if absent is None else (absent, absent)

        return lambda length: rule.longest_valid(length // unit, last_absent) * unit

    def _there(self, index: int, unit: int) -> bool:
        return self._in_index(index, unit) or self._has(object_key.local(index), unit)

    def _in_index(self, index: int, unit: int) -> bool:
        return unit < self.match.units and bool(self._resident[index][unit])

    def _checkpoint(self, length: int) -> int:
        node, marks = self.match.node, self._eviction.checkpoints
        most = min(length, self.match.units * self._planner.unit)
        return marks.clamp(node, most) if node is not None and marks is not None else 0

    def _state(self, length: int) -> int:
        unit, resident = self._planner.unit, self._checkpoint(length)
        for units in range(length // unit, resident // unit, -1):
            if (length // unit - units) % WINDOW == 0:
                self._expect(object_key.STATE, range(max(0, units - WINDOW), units))
            if self._has(object_key.STATE, units - 1):
                return units * unit
        return resident

    def _recorded(self) -> int:
        known = self._rows()
        count = 0
        while count < self._units and (
            (count < len(known) and known[count]) or self._next(object_key.EXPERTS, count, 0)
        ):
            count += 1
        return count

    def _rows(self) -> list[bool]:
        experts, unit = self._eviction.experts, self._planner.unit
        if experts is None or self.match.node is None:
            return []
        path = [(step, step.units) for step in self.match.node.path()][::-1]
        rows = experts.store.form.empty(self.match.units * unit)
        known: list[bool] = experts.store.read(path, rows)[::unit].tolist()
        return known

    # --- costs ---

    def needs(self, length: int, reach: int) -> Iterator[Need]:
        """Yield objects that a hit of `length` units lacks in the index, the end of chains last."""
        for unit in range(self.match.units, reach) if self._planner.full_width else ():
            yield self._need(object_key.FULL, unit)
        for index, windows in enumerate(self._eviction.windows):
            for unit in range(*visible(windows.rule, length, reach)):
                if not self._in_index(index, unit):
                    yield self._need(object_key.local(index), unit)
        tokens = length * self._planner.unit
        if self._eviction.checkpoints is not None and self._checkpoint(tokens) != tokens:
            yield self._need(object_key.STATE, length - 1)
        if self._eviction.experts is not None:
            yield from self._experts(reach)

    def _experts(self, reach: int) -> Iterator[Need]:
        """Rows travel with their blocks; they are not fetched alone."""
        known = self._rows() if self._planner.strict else [True] * self.match.units
        self._expect(object_key.EXPERTS, range(reach))
        for unit in range(reach):
            missing = unit >= self.match.units or not known[unit]
            if missing and self._has(object_key.EXPERTS, unit):
                yield self._need(object_key.EXPERTS, unit)

    def _need(self, part: str, unit: int) -> Need:
        return Need(part, unit, self._key(self._links[unit], part))


def _resident(match: Match, index: int) -> bytearray:
    there = bytearray(match.units)
    node: Node | None = match.node
    while node is not None and node.units:
        lo, stop = node.start + node.runs[index].lo, min(node.start + node.units, match.units)
        if lo < stop:
            there[lo:stop] = b"\1" * (stop - lo)
        node = node.parent
    return there
