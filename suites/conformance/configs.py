"""Configurations of a target, made of a row of `table`: small pools of one group or of any mix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import lcm

from kvproof.harness.contract.factors import Row
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Group, TargetConfig
from kvproof.harness.oracle.group_layout import Layout
from kvproof.suites.conformance.compressed import ChangeGroups
from kvproof.suites.conformance.table import (
    BOTH_WINDOWS,
    INSIDE,
    LEAST,
    LOCAL,
    MOST_UNEQUAL,
    NONE,
    ON,
    OVER,
    SEVERAL,
    WHOLE,
    kinds_of,
    ranks_of,
    ratios,
    sizes_of,
)
from kvproof.suites.framework.component_suite import Draw
from kvproof.suites.framework.draws import integers, sampled_from

LARGEST_UNIT = 8
"""Tokens of the largest unit of blocks of unequal sizes."""
MOST_BLOCKS = 48
_ONE_GROUP = {LEAST: (1, 4), "few": (4, 7), "many": (7, 12)}
"""Level -> blocks of the pool of one group, without the null block."""
_GROUPS = {LEAST: (1, 3), "few": (3, 5), "many": (5, 9)}
"""Level -> units that a pool of several groups holds."""


def config_of(
    row: Row, profile: Profile, draw: Draw, change: ChangeGroups | None = None
) -> TargetConfig:
    """Choose values for the levels of a whole row."""
    groups, ranks = _groups(row, profile, draw), ranks_of(row)
    if change is not None:
        groups = change(groups, profile, ranks, draw)
    states = any(group.kind == "state" for group in groups)
    layout = Layout(groups, separate=states and row["states in"] == "separate")
    rows = _rows(profile, draw) if layout.separate else 0
    units = draw(integers(*(_ONE_GROUP if layout.single else _GROUPS)[row["pool"]]))
    if layout.separate and row["pool"] == "many":
        units = rows + 1  # rows run out before blocks do
    units = max(profile.least_blocks, units)
    blocks = min(MOST_BLOCKS, max(units, units * layout.unit_blocks))
    host = row["host"] != NONE
    return TargetConfig(
        num_blocks=blocks + 1,  # and the null block
        block_size=layout.unit,
        kernel_block_size=groups[0].kernel_block_size if layout.single else 0,
        prefix_caching=row["caching"] == ON,
        groups=() if layout.single else groups,
        state_rows=rows,
        decode_interval={NONE: 0, "a unit": 1, "two units": 2}[row["decode interval"]]
        * layout.unit,
        require_experts=row["experts"] == "required",
        partial_blocks=row["partial"] == ON,
        host_blocks=draw(integers(len(groups), 2 * blocks)) if host else 0,
        host_rows=draw(integers(1, rows)) if host and rows else 0,
        host_policy=row["host"] if host else "",
        context_ranks=ranks,
    )


def _rows(profile: Profile, draw: Draw) -> int:
    """Draw a few rows, or the need of one to three requests and the row that is never used."""
    rows = profile.request_rows
    return int(draw(integers(2, 6) if rows == 1 else integers(rows + 1, 3 * rows + 1)))


def _groups(row: Row, profile: Profile, draw: Draw) -> tuple[Group, ...]:
    kinds = _in_order(kinds_of(row), profile, draw)
    sizes = _sizes(row, profile, kinds, draw)
    unit, found = lcm(*sizes), list[Group]()
    for kind, size in zip(kinds, sizes, strict=True):
        others = [each.size for each in found if each.kind in LOCAL]
        found.append(_group(row, profile, kind, size, unit, others, draw))
    return _with_drafts(row, _in_kernel_blocks(row, profile, found, draw), draw)


def _in_order(kinds: list[str], profile: Profile, draw: Draw) -> list[str]:
    fitting = [each for each in profile.layouts if sorted(each) == sorted(kinds)]
    if fitting:
        return list(draw(sampled_from(tuple(fitting))))
    turned = kinds[:: draw(sampled_from((1, -1)))]
    return [*turned[1:], turned[0]] if draw(sampled_from((False, False, True))) else turned


def _sizes(row: Row, profile: Profile, kinds: Sequence[str], draw: Draw) -> list[int]:
    """Equal block sizes, or unequal ones with a small common multiple."""
    usual = sizes_of(profile, row["block size"])
    if profile.state_block_sizes and "state" in kinds:
        usual = [size for size in usual if size in profile.state_block_sizes]
    sizes = [draw(sampled_from(tuple(usual)))] * len(kinds)
    if row["blocks"] == "equal":
        return sizes
    cut = row["kernel blocks"] == "parts"  # and the first group may be one of states
    able = [each for each in sorted(profile.block_sizes) if not cut or ratios(profile, each)[1:]]
    for index in range(1, len(kinds)):
        others = [
            size
            for size in able
            if size <= MOST_UNEQUAL and lcm(size, *sizes[:index]) <= LARGEST_UNIT
        ]
        unequal = [size for size in others if size != sizes[0]]
        only = index == len(kinds) - 1 and {*sizes[:index]} == {sizes[0]}
        sizes[index] = draw(sampled_from(tuple(unequal if only else others)))
    return sizes


def _group(
    row: Row,
    profile: Profile,
    kind: str,
    size: int,
    unit: int,
    others: Sequence[int],
    draw: Draw,
) -> Group:
    """Draw a group; the first window or chunk has the row's length, others have another one."""
    if kind == "state":
        several = row["blocks of a state"] == "several"
        most = profile.most_state_blocks
        return Group(kind, size, state_blocks=draw(integers(2, most)) if several else 1)
    if kind not in LOCAL:
        return Group(kind, size)
    least = profile.least_window
    if others:
        length = draw(integers(least, max(least, 3 * unit)))
        return Group(kind, size, length + (length in others and draw(sampled_from((0, 1)))))
    most = max(size + 2, 3 * unit)
    lengths = {
        LEAST: (least, least),
        INSIDE: (least + 1, max(least + 1, size - 1)),
        WHOLE: (size, size),
        OVER: (size + 1, size + 1),
        SEVERAL: (size + 2, most),
    }
    low, high = lengths[row["local size"]]
    return Group(kind, size, max(least, draw(integers(low, high))))


def _in_kernel_blocks(row: Row, profile: Profile, groups: list[Group], draw: Draw) -> list[Group]:
    """Cut the blocks of one group, and perhaps of others, into kernel blocks."""
    able = [
        index
        for index, group in enumerate(groups)
        if group.kind != "state" and ratios(profile, group.block_size)[1:]
    ]
    if row["kernel blocks"] != "parts" or not able:
        return groups
    first = draw(sampled_from(tuple(able)))
    for index in able:
        if index == first or draw(sampled_from((True, False))):
            size = groups[index].block_size
            ratio = draw(sampled_from(tuple(ratios(profile, size)[1:])))
            groups[index] = replace(groups[index], kernel_block_size=size // ratio)
    return groups


def _with_drafts(row: Row, groups: list[Group], draw: Draw) -> tuple[Group, ...]:
    """Mark the groups of a draft model; two windows of one are unequal."""
    level = row["draft group"]
    if level == BOTH_WINDOWS:
        return _unequal(groups, draw)
    able = [index for index, group in enumerate(groups) if group.kind == level]
    if able:
        index = draw(sampled_from(tuple(able)))
        groups[index] = replace(groups[index], draft=True)
    return tuple(groups)


def _unequal(groups: list[Group], draw: Draw) -> tuple[Group, ...]:
    sizes: list[int] = []
    for index, group in enumerate(groups):
        if group.kind == "window":
            more = draw(integers(1, 2 * group.block_size)) if group.size in sizes else 0
            groups[index] = replace(group, size=group.size + more, draft=True)
            sizes.append(groups[index].size)
    return tuple(groups)
