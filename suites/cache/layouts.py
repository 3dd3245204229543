"""Configurations in small pools: one group, or any mix that a target's profile allows."""

from __future__ import annotations

from dataclasses import replace
from math import lcm

from hypothesis import strategies as st

from kvproof.harness.layout import Layout
from kvproof.harness.target import Group, Profile, TargetConfig

MAX_BLOCKS = 9
"""Blocks of the largest pool of one group, beside the null block."""
MOST_GROUPS = 4
LARGEST_UNIT = 8
"""Tokens; so that a few units still make a short prompt."""
MOST_BLOCKS = 48


def configurations(profile: Profile) -> st.SearchStrategy[TargetConfig]:
    """Pools of 2 to 9 blocks, mostly of the smallest sizes that the target takes."""
    sizes = sorted(profile.block_sizes)

    @st.composite
    def draw_config(draw: st.DrawFn) -> TargetConfig:
        size = draw(st.sampled_from(sizes[:4] if draw(st.integers(0, 7)) < 7 else sizes))
        ratios = [r for r in range(1, profile.max_kernel_ratio + 1) if size % r == 0]
        ratio = draw(st.sampled_from(ratios))
        return TargetConfig(
            num_blocks=draw(st.integers(2, MAX_BLOCKS)) + 1,  # and the null block
            block_size=size,
            kernel_block_size=size // ratio if ratio > 1 else 0,
            prefix_caching=draw(st.integers(0, 15)) != 15,
        )

    return draw_config()


@st.composite
def any_configuration(draw: st.DrawFn, profile: Profile) -> TargetConfig:
    """Draw one group, one time in four and where no others are known, or several."""
    if len(profile.groups) > 1 and draw(st.integers(0, 3)):
        return draw(layouts(profile))
    config = draw(configurations(profile))
    strict = profile.require_experts and draw(st.integers(0, 2)) == 2
    partial = profile.partial_blocks and not strict and draw(st.integers(0, 3)) > 0
    return replace(config, require_experts=strict, partial_blocks=partial)


@st.composite
def layouts(draw: st.DrawFn, profile: Profile) -> TargetConfig:
    """Draw one to four groups and a pool that holds a few units of each."""
    groups = draw(_groups(profile))
    layout = Layout(groups, separate=False)
    states = bool(layout.states)
    pools = profile.state_pools if states else ()
    rows = draw(st.integers(2, 6)) if pools and draw(st.sampled_from(pools)) == "separate" else 0
    units = draw(st.integers(2, 6))
    blocks = units * Layout(groups, separate=rows > 0).unit_blocks
    interval = draw(st.sampled_from((0, 1, 1, 2))) if states else 0
    strict = profile.require_experts and bool(layout.full) and draw(st.integers(0, 2)) == 2
    return TargetConfig(
        num_blocks=min(MOST_BLOCKS, max(units, blocks)) + 1,  # and the null block
        block_size=layout.unit,
        prefix_caching=draw(st.integers(0, 15)) != 15,
        groups=groups,
        state_rows=rows,
        decode_interval=interval * layout.unit,
        require_experts=strict,
        partial_blocks=_may_be_partial(profile, groups) and not strict and draw(st.booleans()),
    )


def _may_be_partial(profile: Profile, groups: tuple[Group, ...]) -> bool:
    whole = any(group.kind != "full" or group.draft for group in groups)
    return profile.partial_blocks and not whole


@st.composite
def _groups(draw: st.DrawFn, profile: Profile) -> tuple[Group, ...]:
    """One group in four is full attention, the first one more often."""
    kinds = list(profile.groups)
    if profile.draft_groups and "full" in kinds and draw(st.integers(0, 3)) == 3:
        size = draw(st.sampled_from(sorted(profile.block_sizes)[:3]))
        return Group("full", size), Group("full", size, draft=True)
    count = draw(st.integers(1, MOST_GROUPS))
    first = draw(st.sampled_from(("full", *kinds)))
    drawn = [first, *(draw(st.sampled_from(kinds)) for _ in range(count - 1))]
    sizes = _sizes(draw, profile, len(drawn))
    unit = lcm(*sizes)
    groups = [
        _group(draw, profile, kind, size, unit) for kind, size in zip(drawn, sizes, strict=True)
    ]
    if all(group.draft for group in groups):
        groups[0] = Group(groups[0].kind, groups[0].block_size, groups[0].size)
    return tuple(groups)


def _sizes(draw: st.DrawFn, profile: Profile, count: int) -> list[int]:
    """Equal block sizes, or unequal ones with a small common multiple."""
    small = [size for size in sorted(profile.block_sizes) if size <= 4] or [
        min(profile.block_sizes)
    ]
    sizes = [draw(st.sampled_from(small))] * count
    if profile.mixed_block_sizes and draw(st.booleans()):
        for index in range(1, count):
            other = draw(st.sampled_from(small))
            if lcm(other, *sizes[:index]) <= LARGEST_UNIT:
                sizes[index] = other
            else:
                sizes[index] = sizes[0]
    return sizes


def _group(draw: st.DrawFn, profile: Profile, kind: str, size: int, unit: int) -> Group:
    if kind == "state":
        return Group(kind, size, state_blocks=draw(st.integers(1, 2)))
    length = 0 if kind == "full" else draw(st.integers(1, 3 * unit))
    ratios = [r for r in range(1, profile.max_kernel_ratio + 1) if size % r == 0]
    ratio = draw(st.sampled_from(ratios))
    draft = profile.draft_groups and draw(st.integers(0, 7)) == 7
    return Group(kind, size, length, size // ratio if ratio > 1 else 0, draft)
