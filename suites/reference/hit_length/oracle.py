"""The longest valid hit by trying every length, written from X1-X3 and M2 alone."""

from __future__ import annotations

from math import lcm

from kvproof.suites.reference.hit_length.cases import Case, Group


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
        return _has_all(group, there, length)
    ahead = length + lcm(*(each.block_size for each in case.groups))
    if ahead > case.limit or not _matched(case, ahead):
        return False
    return _has_all(group, there, length) and _has_all(group, there, ahead)


def _matched(case: Case, length: int) -> bool:
    """Whether full attention has every block up to `length`: drafts look no further (X3)."""
    return all(
        _has_all(group, set(there), length)
        for group, there in zip(case.groups, case.resident, strict=True)
        if group.kind == "full"
    )


def _has_all(group: Group, there: set[int], length: int) -> bool:
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
