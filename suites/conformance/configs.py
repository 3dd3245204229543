"""Configurations in small pools: one group, or any mix that a target's profile allows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import lcm
from typing import NamedTuple

from hypothesis import strategies as st

from kvproof.harness.contract.profile import DraftProfile, Profile
from kvproof.harness.contract.target import Group, TargetConfig
from kvproof.harness.oracle.group_layout import Layout
from kvproof.suites.framework.draws import integers

MAX_BLOCKS = 9
"""Blocks of the largest pool of one group, without the null block."""
MOST_GROUPS = 4
LARGEST_UNIT = 8
"""Tokens; a few units still make a short prompt."""
MOST_BLOCKS = 48


class LayoutConstraint(NamedTuple):
    """Demands of a workload profile on a configuration; by default none."""

    kind: str = ""
    draft: bool = False
    pool: str = ""
    """Place of recurrent states; empty: it is drawn."""
    strict_often: bool = False
    """Expert rows are required more often than not."""
    least_units: int = 2
    most_units: int = 6
    least_size: int = 1
    """Tokens of the smallest block, if the target takes larger ones."""
    across: bool = False
    """Half of the time: local attention whose chunks begin inside blocks, with full attention."""
    host: bool = False
    unequal: bool = False
    """A draft model has two windows of unequal size."""
    mixed: bool = False
    """The groups have blocks of unequal sizes, if the target allows it."""
    inside: bool = False
    """Partial blocks are kept, also with states, and blocks have several tokens."""


ANYTHING = LayoutConstraint()


def configurations(profile: Profile) -> st.SearchStrategy[TargetConfig]:
    """Pools of 2 to 9 blocks, mostly of the smallest sizes that the target takes."""
    return one_group(profile)


@st.composite
def one_group(
    draw: st.DrawFn,
    profile: Profile,
    *,
    least_size: int = 1,
    least_units: int = 2,
    most_units: int = MAX_BLOCKS,
    partial_blocks: bool = False,
    host: bool = False,
) -> TargetConfig:
    """Draw some blocks of at least `least_size` tokens, perhaps with a `host` tier below them."""
    sizes = sorted(profile.block_sizes)
    sizes = [size for size in sizes if size >= least_size] or sizes
    size = draw(st.sampled_from(sizes[:4] if draw(integers(0, 7)) < 7 else sizes))
    ratios = [r for r in range(1, profile.max_kernel_ratio + 1) if size % r == 0]
    ratio = draw(st.sampled_from(ratios))
    return TargetConfig(
        num_blocks=draw(integers(_least(profile, least_units), most_units)) + 1,  # and the null
        block_size=size,
        kernel_block_size=size // ratio if ratio > 1 else 0,
        prefix_caching=host or draw(integers(0, 15)) != 15,
        partial_blocks=partial_blocks,
        host_blocks=draw(integers(1, 2 * most_units)) if host else 0,
        host_policy=draw(st.sampled_from(profile.host_policies)) if host else "",
    )


@st.composite
def any_layout(
    draw: st.DrawFn, profile: Profile, *, constraint: LayoutConstraint = ANYTHING
) -> TargetConfig:
    """Draw one group half of the time, and where the target has no other kinds; else several."""
    if len(profile.groups) > 1 and draw(st.booleans()):
        return draw(several(profile, constraint=constraint))
    least, most = constraint.least_units, min(MAX_BLOCKS, constraint.most_units)
    config = draw(one_group(profile, least_units=least, most_units=most))
    return replace(config, require_experts=_strict(draw, profile, constraint))


@st.composite
def unfilled(draw: st.DrawFn, profile: Profile) -> TargetConfig:
    """Draw partial blocks of one group, or of two: small blocks of a partial unit are missing."""
    sizes = [size for size in sorted(profile.block_sizes) if 1 < size <= LARGEST_UNIT]
    unequal = profile.mixed_block_sizes and not profile.layouts and len(sizes) > 1
    if not unequal or draw(st.booleans()):
        return draw(one_group(profile, least_size=2, partial_blocks=True))
    small, large = sizes[:2]
    groups = (Group("full", small), Group("full", large))
    layout = Layout(groups, separate=False)
    units = draw(st.integers(2, 6))
    return TargetConfig(
        num_blocks=units * layout.unit_blocks + 1,  # and the null block
        block_size=layout.unit,
        groups=groups,
        partial_blocks=True,
    )


@st.composite
def hosted(draw: st.DrawFn, profile: Profile) -> TargetConfig:
    """Draw a pool with a host tier below it, and groups whose tables may be there."""
    kinds = tuple(kind for kind in profile.host_groups if kind != "state")
    layouts = tuple(kept for kept in profile.layouts if {*kept} <= {*kinds})
    if "window" in kinds and draw(st.booleans()):
        layers = replace(profile.layers, groups=kinds, layouts=layouts)
        able = replace(profile, layers=layers)
        return draw(several(able, constraint=LayoutConstraint(kind="window", host=True)))
    return draw(one_group(profile, most_units=7, host=True))


@st.composite
def several(
    draw: st.DrawFn, profile: Profile, *, constraint: LayoutConstraint = ANYTHING
) -> TargetConfig:
    """Draw one to four groups and a pool that holds a few units of each."""
    groups = _groups(draw, profile, constraint)
    layout = Layout(groups, separate=False)
    states = bool(layout.states)
    pools = (constraint.pool,) if constraint.pool else profile.state_pools
    separate = states and bool(pools) and draw(st.sampled_from(pools)) == "separate"
    rows = _rows(draw, profile) if separate else 0
    roomy = constraint.pool == "separate" and draw(st.booleans())  # rows run out before blocks do
    least = _least(profile, constraint.least_units)
    units = rows + 1 if roomy else draw(integers(least, constraint.most_units))
    blocks = units * Layout(groups, separate=separate).unit_blocks
    strict = bool(layout.full) and _strict(draw, profile, constraint)
    return TargetConfig(
        num_blocks=min(MOST_BLOCKS, max(units, blocks)) + 1,  # and the null block
        block_size=layout.unit,
        prefix_caching=constraint.host or draw(integers(0, 15)) != 15,
        groups=groups,
        state_rows=rows,
        decode_interval=draw(st.sampled_from((0, 1, 1, 2))) * layout.unit if states else 0,
        require_experts=strict,
        partial_blocks=(
            _may_be_partial(profile, groups)
            and not strict
            and (constraint.inside or draw(st.booleans()))
        ),
        host_blocks=draw(integers(len(groups), 2 * blocks)) if constraint.host else 0,
        host_rows=draw(integers(1, rows)) if constraint.host and separate else 0,
        host_policy=draw(st.sampled_from(profile.host_policies)) if constraint.host else "",
    )


def _least(profile: Profile, units: int) -> int:
    return max(profile.least_blocks, units)


def _rows(draw: st.DrawFn, profile: Profile) -> int:
    """Draw a few rows, or the need of one to three requests and the row that is never used."""
    rows = profile.request_rows
    return draw(integers(2, 6) if rows == 1 else integers(rows + 1, 3 * rows + 1))


def _strict(draw: st.DrawFn, profile: Profile, constraint: LayoutConstraint) -> bool:
    chances = (False, True, True) if constraint.strict_often else (False, False, False, True)
    return profile.require_experts and draw(st.sampled_from(chances))


def _may_be_partial(profile: Profile, groups: tuple[Group, ...]) -> bool:
    if any(group.kind == "state" for group in groups):
        return profile.partial_states
    whole = any(group.kind != "full" or group.draft for group in groups)
    return profile.partial_blocks and not whole


def _groups(draw: st.DrawFn, profile: Profile, constraint: LayoutConstraint) -> tuple[Group, ...]:
    anything = not profile.layouts
    if constraint.unequal:
        return _unequal_windows(draw, profile)
    if constraint.across and draw(st.booleans()) and _beside_full(profile):
        return _across(draw, profile)
    if constraint.draft and anything and "full" in profile.groups and draw(st.booleans()):
        size = draw(st.sampled_from(sorted(profile.block_sizes)[:3]))
        return Group("full", size), Group("full", size, draft=True)
    kinds = _kinds(draw, profile, constraint)
    if profile.layouts:
        fitting = [kinds for kinds in profile.layouts if constraint.kind in (*kinds, "")]
        if constraint.mixed:
            fitting = [each for each in fitting if len(each) > 1 and _may_mix(profile, each)]
        kinds = list(draw(st.sampled_from(fitting)))
    if "state" in kinds and profile.state_block_sizes:
        profile = replace(profile, block_sizes=profile.state_block_sizes)
    if constraint.inside:
        large = tuple(size for size in profile.block_sizes if size > 1)
        profile = replace(profile, block_sizes=large or profile.block_sizes)
    larger = tuple(size for size in profile.block_sizes if size >= constraint.least_size)
    profile = replace(profile, block_sizes=larger or profile.block_sizes)
    sizes = _sizes(draw, profile, kinds, constraint)
    unit = lcm(*sizes)
    if profile.mixed_kinds and len({*sizes}) > 1:
        profile = replace(profile, speculative=DraftProfile())
    groups = [
        _group(draw, profile, kind, size, unit) for kind, size in zip(kinds, sizes, strict=True)
    ]
    if constraint.draft and not any(group.draft for group in groups):
        _make_draft(draw, profile, groups)
    if all(group.draft for group in groups):
        groups[0] = replace(groups[0], draft=False)
    return tuple(groups)


def _beside_full(profile: Profile) -> bool:
    return not profile.layouts or ("full", "chunk") in profile.layouts


def _across(draw: st.DrawFn, profile: Profile) -> tuple[Group, ...]:
    small = [size for size in sorted(profile.block_sizes) if 1 < size <= LARGEST_UNIT]
    size = draw(st.sampled_from(small[:2] or [min(profile.block_sizes)]))
    lengths = range(profile.least_window, 3 * size)
    uneven = [length for length in lengths if length % size and size % length] or [size]
    return Group("full", size), Group("chunk", size, draw(st.sampled_from(uneven)))


def _kinds(draw: st.DrawFn, profile: Profile, constraint: LayoutConstraint) -> list[str]:
    least = 2 if constraint.draft or constraint.mixed else 1
    count = draw(integers(least, MOST_GROUPS))
    first = constraint.kind or draw(st.sampled_from(("full", *profile.groups)))
    usual = (*profile.groups, *(("full",) if "full" in profile.groups else ()))
    kinds = [first, *(draw(st.sampled_from(usual)) for _ in range(count - 1))]
    return kinds if draw(st.booleans()) else kinds[::-1]


def _make_draft(draw: st.DrawFn, profile: Profile, groups: list[Group]) -> None:
    able = [index for index, group in enumerate(groups) if group.kind in profile.draft_kinds]
    if able:
        index = draw(st.sampled_from(able))
        groups[index] = replace(groups[index], draft=True)


def may_be_unequal(profile: Profile) -> bool:
    """Whether a draft model may have two windows, with full attention of the model."""
    kinds = ("full", "window", "window")
    able = profile.draft_groups and "window" in profile.draft_kinds
    return able and {*kinds} <= {*profile.groups} and kinds in (profile.layouts or (kinds,))


def _unequal_windows(draw: st.DrawFn, profile: Profile) -> tuple[Group, ...]:
    size = draw(st.sampled_from(sorted(profile.block_sizes)[:3]))
    one = draw(st.integers(profile.least_window, profile.least_window + 2 * size))
    other = one + draw(st.integers(1, 2 * size))
    windows = [Group("window", size, window, draft=True) for window in (one, other)]
    return (Group("full", size), *(windows if draw(st.booleans()) else windows[::-1]))


def _may_mix(profile: Profile, kinds: Iterable[str]) -> bool:
    only = profile.mixed_kinds
    return profile.mixed_block_sizes and (not only or {*kinds} <= {*only})


def _sizes(
    draw: st.DrawFn, profile: Profile, kinds: list[str], constraint: LayoutConstraint
) -> list[int]:
    """Equal block sizes, or unequal ones with a small common multiple."""
    small = [size for size in sorted(profile.block_sizes) if size <= 4] or [
        min(profile.block_sizes)
    ]
    sizes = [draw(st.sampled_from(small))] * len(kinds)
    may = _may_mix(profile, kinds) and not (profile.mixed_kinds and constraint.draft)
    if may and (constraint.mixed or draw(st.booleans())):
        for index in range(1, len(kinds)):
            other = draw(st.sampled_from(small))
            if lcm(other, *sizes[:index]) <= LARGEST_UNIT:
                sizes[index] = other
            else:
                sizes[index] = sizes[0]
    return sizes


def _group(draw: st.DrawFn, profile: Profile, kind: str, size: int, unit: int) -> Group:
    if kind == "state":
        return Group(kind, size, state_blocks=draw(integers(1, profile.most_state_blocks)))
    least = profile.least_window
    length = 0 if kind == "full" else draw(integers(least, max(least, 3 * unit)))
    ratios = [r for r in range(1, profile.max_kernel_ratio + 1) if size % r == 0]
    ratio = draw(st.sampled_from(ratios))
    may = profile.draft_groups and kind in profile.draft_kinds
    draft = may and draw(integers(0, 7)) == 7
    return Group(kind, size, length, size // ratio if ratio > 1 else 0, draft)
