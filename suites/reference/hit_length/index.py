"""A cache manager whose index holds exactly the content of a case, for one request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import lcm
from typing import NamedTuple

from kvproof.reference.cache.cache_manager import NO_HIT, CacheManager
from kvproof.reference.cache.hit_length import Clamp
from kvproof.reference.cache.request_state import RequestState
from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.identity import DEFAULT_NAMESPACE, Span
from kvproof.reference.prefix.trie import Node
from kvproof.reference.prefix.window_blocks import WindowTable
from kvproof.suites.reference.hit_length.cases import Case, Group


class Reduction(NamedTuple):
    """One limit lowered the length."""

    which: int
    name: str
    before: int
    after: int


def as_indexed(case: Case) -> Case:
    """Return the case as an index can hold it: whole units, equal in all groups of one rule.

    Full attention holds a prefix, and nothing lies after it.
    """
    unit = lcm(*(group.block_size for group in case.groups))
    units = case.limit // unit
    whole = [_whole_units(case, index, unit, units) for index in range(len(case.groups))]
    for group, there in zip(case.groups, whole, strict=True):
        if group.kind == "full":
            units = min([units, *(set(range(units)) - there)])
    rules = [_rule(group) for group in case.groups]
    return case._replace(
        resident=tuple(
            _resident(
                group,
                set.intersection(
                    *(w for w, other in zip(whole, rules, strict=True) if other == rule)
                ),
                unit,
                units,
            )
            for group, rule in zip(case.groups, rules, strict=True)
        )
    )


def _rule(group: Group) -> tuple[object, ...]:
    if group.kind in ("window", "chunk"):
        return group.kind, group.size, group.draft
    return (group.kind,)


def _whole_units(case: Case, index: int, unit: int, units: int) -> set[int]:
    """Units of which a group has every block; of a state, those that end at a checkpoint."""
    group, there = case.groups[index], set(case.resident[index])
    if group.kind == "state":
        return {number for number in range(units) if (number + 1) * unit in there}
    ratio = unit // group.block_size
    return {n for n in range(units) if there.issuperset(range(n * ratio, (n + 1) * ratio))}


def _resident(group: Group, there: set[int], unit: int, units: int) -> tuple[int, ...]:
    kept = sorted(number for number in there if number < units)
    if group.kind == "state":
        return tuple((number + 1) * unit for number in kept)
    ratio = unit // group.block_size
    return tuple(block for n in kept for block in range(n * ratio, (n + 1) * ratio))


class LiveIndex:
    """Returns the manager's own hit for the case `as_indexed`."""

    def __init__(self, case: Case) -> None:
        self._limit = case.limit
        self.unit = lcm(*(group.block_size for group in case.groups))
        end = max([case.limit + 1, *(stop for _, stop in case.spans)])
        self._tokens = list(range(end))
        self._spans = [Span("image", start, stop - start, "7f3c") for start, stop in case.spans]
        self.manager = CacheManager(_config(case, self.unit))
        self._request = self._new_request()
        self._units = _units_known(case, self.unit)
        if self._units:
            self._insert()
            self._take_away(case)

    def _new_request(self) -> RequestState:
        return RequestState("r", self._tokens, DEFAULT_NAMESPACE, self._spans, self.unit)

    def _insert(self) -> None:
        """Index every unit in all groups, each in a node of its own, without locks."""
        eviction, request, units = self.manager.eviction, self._request, self._units
        node = eviction.trie.lock(NO_HIT, request.namespace)
        blocks = eviction.pool.allocate(units * eviction.full_width)
        ranges = eviction.trie.insert(node, request.tokens, request.segments, blocks, 0, units)
        end = ranges[-1].node
        for windows in eviction.windows:
            table = WindowTable(windows, 0, eviction.pool.allocate(units * windows.width))
            windows.index(table, ranges)
            windows.unlock(table, end, units, units)
        eviction.trie.unlock(end)
        for count in range(1, units):
            eviction.trie.unlock(self._locked(count))

    def _locked(self, units: int) -> Node:
        """Lock the first units; a node ends after them from then on."""
        request, trie = self._request, self.manager.trie
        match = trie.match(request.namespace, bytes(request.tokens), request.segments, units)
        return trie.lock(match, request.namespace)

    def _take_away(self, case: Case) -> None:
        """Evict the window blocks that the case lacks, and add its checkpoints."""
        eviction = self.manager.eviction
        end = self._locked(self._units)
        for index, windows in enumerate(eviction.windows):
            member = windows.rule.members[0]
            kept = {block // member.ratio for block in case.resident[member.group]}
            for node in end.path():
                if node.units and node.start not in kept:
                    eviction.pool.free(windows.evict_front(node.runs[index], 1))
        for group, there in zip(case.groups, case.resident, strict=True):
            if group.kind == "state" and eviction.states and eviction.checkpoints:
                for tokens in there:
                    saved = eviction.states.reserve(None, tokens)
                    assert saved is not None, "the pool has a slot for each unit"
                    eviction.checkpoints.attach(end, [saved])
                break  # one checkpoint has the states of all groups
        eviction.trie.unlock(end)

    def hit(self) -> int:
        """Return the tokens that a new equal request hits."""
        return self.manager.hits.find(self._new_request(), self._limit).tokens(self.unit)

    def reductions(self) -> list[Reduction]:
        clamps = [*self._clamps()]
        steps: list[Reduction] = []
        length, before = self._limit, -1
        while length != before:
            before = length
            for which, (name, clamp) in enumerate(clamps):
                lower = clamp(length)
                if lower != length:
                    steps.append(Reduction(which, name, length, lower))
                length = lower
        return steps

    def _clamps(self) -> Iterator[tuple[str, Clamp]]:
        request, unit = self._request, self.unit
        match = self.manager.trie.match(
            request.namespace, bytes(request.tokens), request.segments, self._limit // unit
        )
        cached = match.units * unit
        yield "aligned", lambda length: length // unit * unit
        yield "full", lambda length: min(length, cached)
        if match.node is not None and match.units:
            yield from self.manager.hits.clamps(match.node, cached, request.spans)
            node, checkpoints = match.node, self.manager.eviction.checkpoints
            if checkpoints is not None:
                yield "state", lambda length: checkpoints.clamp(node, length)


def _config(case: Case, unit: int) -> CacheConfig:
    groups = tuple(
        GroupConfig(
            group.kind,
            group.block_size,
            group.size if group.kind in ("window", "chunk") else 0,
            draft=group.draft,
        )
        for group in case.groups
    )
    units = case.limit // unit
    width = sum(unit // group.block_size for group in case.groups)
    return CacheConfig(
        2 + units * width,
        groups=groups,
        state_pool="separate",
        max_requests=1,
        prefix_cache_state_budget=units,
    )


def _units_known(case: Case, unit: int) -> int:
    """Units in the index: those of full attention, or all if there is no such group."""
    full: Sequence[int] = [
        len(there) * group.block_size // unit
        for group, there in zip(case.groups, case.resident, strict=True)
        if group.kind == "full"
    ]
    return min([case.limit // unit, *full])
