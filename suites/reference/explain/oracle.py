"""The true hit, by brute force: records of all computed tokens, and the index read whole.

Nothing here uses a match, clamp or infinite cache of the reference. The oracle of the suite `hits`
defines the content that a group needs for a hit.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, TypeAlias

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.core.identity import TOKEN_BYTES, Namespace, Span
from kvproof.reference.prefix.trie import Node
from kvproof.suites.reference.hit_length.cases import Case, Group, is_valid

Tokens: TypeAlias = tuple[int, ...]
Unit: TypeAlias = tuple[Tokens, tuple[Span, ...]]
"""Tokens of a unit, and the spans that begin in it."""


class Prompt(NamedTuple):
    """Identity of content, and its permissions."""

    namespace: Namespace
    tokens: Tokens
    spans: tuple[Span, ...]


class Record(NamedTuple):
    prompt: Prompt
    stop: int
    wanted: bool
    """The state at `stop` was worth a checkpoint."""
    saved: bool


def common(one: Prompt, other: Prompt) -> int:
    """Count the leading tokens that have the same content in both."""
    if one.namespace != other.namespace:
        return 0
    mine, theirs = ({span.start: span for span in prompt.spans} for prompt in (one, other))
    length = 0
    for position, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=False)):
        if a != b or mine.get(position) != theirs.get(position):
            break
        length += 1
    return length


class Found(NamedTuple):
    """Content of the index for a prompt, in units."""

    units: int
    resident: tuple[tuple[int, ...], ...]
    """Resident units for each class of windows and chunks."""
    checkpoints: tuple[int, ...]


def read(manager: CacheManager, prompt: Prompt, most: int) -> Found:
    """Compare a prompt of at most `most` units with every path of the index."""
    units = _units(prompt, manager.config.layout.unit)[:most]
    ends = [(_equal(node, units, prompt), node) for node in manager.trie.nodes()]
    best, end = max(ends, key=lambda found: found[0], default=(0, None))
    if end is None or not best:
        return Found(0, ((),) * len(manager.eviction.windows), ())
    unit = manager.config.layout.unit
    path = [node for node in end.path() if node.start < best and node.units][::-1]
    inside = [(node, min(node.units, best - node.start)) for node in path]
    resident = tuple(
        tuple(node.start + u for node, n in inside for u in range(node.runs[index].lo, n))
        for index in range(len(manager.eviction.windows))
    )
    checkpoints = tuple(
        (node.start + mark) * unit
        for node, count in inside
        for mark, checkpoint in sorted((node.states or {}).items())
        if mark <= count and checkpoint.restorable
    )
    return Found(best, resident, checkpoints)


def _units(prompt: Prompt, unit: int) -> tuple[Unit, ...]:
    return tuple(
        (
            prompt.tokens[first : first + unit],
            tuple(span for span in prompt.spans if first <= span.start < first + unit),
        )
        for first in range(0, len(prompt.tokens) // unit * unit, unit)
    )


def _equal(node: Node, units: tuple[Unit, ...], prompt: Prompt) -> int:
    namespace, there = _path(node)
    if namespace != prompt.namespace:
        return 0
    same = [one == other for one, other in zip(there, units, strict=False)]
    return (*same, False).index(False)


def _path(node: Node) -> tuple[object, tuple[Unit, ...]]:
    """Return the namespace of a node, and the units from the root to its end."""
    root, *path = [*node.path()][::-1]
    return root.key, tuple(_unit_of(step, inside) for step in path for inside in range(step.units))


def _unit_of(node: Node, inside: int) -> Unit:
    size = len(node.tokens) // node.units
    data = memoryview(bytes(node.tokens[inside * size : (inside + 1) * size])).cast("i")
    assert data.nbytes % TOKEN_BYTES == 0
    marks = node.key[1] if inside == 0 and isinstance(node.key, tuple) else ()
    return tuple(data), marks


class RowsGiven:
    """Units with expert rows: computed with rows and stored, until they are evicted (R3).

    A unit is named by its namespace and all units up to it.
    """

    def __init__(self, manager: CacheManager) -> None:
        self._manager, self._unit = manager, manager.config.layout.unit
        self._known: set[tuple[object, tuple[Unit, ...]]] = set()

    def give(self, prompt: Prompt, start: int, stop: int) -> None:
        """Add rows for tokens [start, stop) of a prompt; a unit begins at `start`."""
        units, first = _units(prompt, self._unit), start // self._unit + 1
        names = [units[:end] for end in range(first, stop // self._unit + 1)]
        self._known.update((prompt.namespace, name) for name in names)

    def forget_evicted(self) -> None:
        """Remove rows of units outside the index; call it before more is stored."""
        paths = [(node, *_path(node)) for node in self._manager.trie.nodes()]
        self._known &= {
            (namespace, there[:end])
            for node, namespace, there in paths
            for end in range(len(there) - node.units + 1, len(there) + 1)
        }

    def leading(self, prompt: Prompt) -> int:
        """Count the leading units of a prompt that have rows, if they are in the index."""
        units = _units(prompt, self._unit)
        ends = range(1, len(units) + 1)
        known = [(prompt.namespace, units[:end]) in self._known for end in ends]
        return (*known, False).index(False)


class Truth:
    """The longest hit of a prompt under some limits, by trying every length."""

    def __init__(
        self, manager: CacheManager, records: list[Record], rows: RowsGiven, prompt: Prompt
    ) -> None:
        self._layout, self._row_width = manager.config.layout, manager.eviction.row_width
        self._unit, self._spans = self._layout.unit, prompt.spans
        self._required = manager.config.require_cached_experts
        self._with_rows = rows.leading(prompt) * self._unit
        most = max(0, len(prompt.tokens) - 1)
        alike = [(common(prompt, one.prompt), one) for one in records]
        self.optimum = max((min(most, same, one.stop) for same, one in alike), default=0)
        usable = [one for same, one in alike if one.stop <= min(most, same)]
        self._wanted = {one.stop for one in usable if one.wanted}
        self._saved = {one.stop for one in usable if one.saved}
        self._found = read(manager, prompt, most // self._unit)

    def hit(self, applied: Collection[str]) -> int:
        """Return the longest length that all limits in `applied` allow."""
        whole = self.optimum // self._unit * self._unit
        evicted = "eviction" in applied and self._row_width
        limit = self._found.units * self._unit if evicted else whole
        lengths = range(limit, -1, -self._unit)
        best = next(n for n in lengths if not n or self._allowed(n, limit, applied))
        return self.optimum if best == whole and "alignment" not in applied else best

    def _allowed(self, length: int, limit: int, applied: Collection[str]) -> bool:
        inside = any(s.start < length < s.start + s.length for s in self._spans)
        drafts = any(group.draft for group in self._layout.groups)
        states = bool(self._layout.states)
        missing = self._required and length > self._with_rows
        barred = {
            "span": inside,
            "draft": drafts and length + self._unit > limit,
            "no_checkpoint": states and length not in self._wanted,
            "no_row": states and length not in self._saved,
            "checkpoint_evicted": states and length not in self._found.checkpoints,
            "experts": missing,
        }
        return not any(barred[name] for name in applied if name in barred) and all(
            self._serves(index, length, limit)
            for index, rule in enumerate(self._layout.local)
            if rule.kind in applied
        )

    def _serves(self, index: int, length: int, limit: int) -> bool:
        rule = self._layout.local[index]
        group = Group(rule.kind, self._unit, rule.size, rule.draft)
        return is_valid(Case((group,), limit, (self._found.resident[index],), ()), length)
