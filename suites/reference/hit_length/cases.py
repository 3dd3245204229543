"""Cases of hit lengths, and the longest valid hit by trying every length."""

from __future__ import annotations

from collections.abc import Callable
from math import lcm
from typing import NamedTuple, TypeAlias

from kvproof.reference.core.attention_groups import KINDS, Kind


def longest_by_trying(case: Case) -> int:
    """Return the first length from the limit down that is valid for every group."""
    return next(length for length in range(case.limit, -1, -1) if is_valid(case, length))


def is_valid(case: Case, length: int) -> bool:
    """Whether a hit may end at `length`; computing everything is always possible."""
    if length == 0:
        return True
    return (
        all(length % group.block_size == 0 for group in case.groups)
        and not any(start < length < stop for start, stop in case.spans)
        and all(_serves(case, index, length) for index in range(len(case.groups)))
    )


def _serves(case: Case, index: int, length: int) -> bool:
    """Whether a group has the blocks for the next position; a draft group, one unit more."""
    group = case.groups[index]
    there = set(case.resident[index])
    if not group.draft or group.kind == "state":
        return has_all(group, there, length)
    ahead = length + lcm(*(each.block_size for each in case.groups))
    if ahead > case.limit or not _matched(case, ahead):
        return False
    return has_all(group, there, length) and has_all(group, there, ahead)


def _matched(case: Case, length: int) -> bool:
    """Whether full attention has every block up to `length`: drafts look no further (X3)."""
    return all(
        has_all(group, set(there), length)
        for group, there in zip(case.groups, case.resident, strict=True)
        if group.kind == "full"
    )


def has_all(group: Group, there: set[int], length: int) -> bool:
    """Whether a group has every block that the position after `length` tokens reads."""
    if group.kind == "state":
        return length in there
    return all(
        position // group.block_size in there
        for position in range(length)
        if _sees(group, length, position)
    )


def _sees(group: Group, query: int, position: int) -> bool:
    if group.kind == "window":
        return query - position < group.size
    if group.kind == "chunk":
        return query // group.size == position // group.size
    return True


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
    """Present blocks of each group, ascending; for a state, the lengths with a checkpoint."""
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
