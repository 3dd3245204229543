"""Cases of the hit-length search: groups, their resident blocks, spans and a limit.

One generator serves Hypothesis and a seeded random generator: both choose integers in a range.
"""

from __future__ import annotations

from collections.abc import Callable
from math import lcm
from typing import NamedTuple, TypeAlias

from kvproof.reference.core.attention_groups import KINDS, Kind

Choose: TypeAlias = Callable[[int, int], int]
"""An integer from the first to the last, both included."""

UNITS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 24, 30)
"""Block sizes of one case divide one of these, so that several units fit a short limit."""
MOST_GROUPS = 6
LARGEST_BLOCK = 8
LARGEST_SIZE = 20


class Group(NamedTuple):
    """One group, sizes in tokens."""

    kind: Kind
    block_size: int
    size: int
    draft: bool


class Case(NamedTuple):
    groups: tuple[Group, ...]
    limit: int
    resident: tuple[tuple[int, ...], ...]
    """Per group: present blocks; for a state, the lengths with a checkpoint. Ascending."""
    spans: tuple[tuple[int, int], ...]
    """(start, stop) in order."""


def choose_groups(choose: Choose) -> tuple[Group, ...]:
    unit = UNITS[choose(0, len(UNITS) - 1)]
    sizes = [size for size in range(1, LARGEST_BLOCK + 1) if unit % size == 0]
    drafts = choose(0, 2)
    return tuple(
        Group(
            kind=KINDS[choose(0, len(KINDS) - 1)],
            block_size=sizes[choose(0, len(sizes) - 1)],
            size=choose(1, LARGEST_SIZE),
            draft=choose(0, 2) < drafts,
        )
        for _ in range(choose(1, MOST_GROUPS))
    )


def choose_case(choose: Choose, groups: tuple[Group, ...]) -> Case:
    """Return the cache content for one request of up to eight units in these groups."""
    limit = choose(0, 8 * max(4, lcm(*(group.block_size for group in groups))))
    resident = tuple(_choose_resident(choose, group, limit) for group in groups)
    return Case(groups, limit, resident, _choose_spans(choose, limit))


def _choose_resident(choose: Choose, group: Group, limit: int) -> tuple[int, ...]:
    size = group.block_size
    if group.kind == "state":
        return tuple(range(size, limit + 1, size)[i] for i in _subset(choose, limit // size))
    return _subset(choose, -(-limit // size))


def _subset(choose: Choose, count: int) -> tuple[int, ...]:
    if not count:
        return ()
    if choose(0, 3) == 3:
        mask = choose(0, (1 << count) - 1)
        return tuple(i for i in range(count) if mask >> i & 1)
    holes = {choose(0, count - 1) for _ in range(choose(0, 2))}
    return tuple(i for i in range(count) if i not in holes)


def _choose_spans(choose: Choose, limit: int) -> tuple[tuple[int, int], ...]:
    spans, position = [], 0
    for _ in range(choose(0, 3)):
        start = position + choose(0, LARGEST_BLOCK)
        position = start + choose(1, 2 * LARGEST_BLOCK)
        if start < limit:
            spans.append((start, position))
    return tuple(spans)
