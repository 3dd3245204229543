"""Groups of compressed layers, and of what belongs to another group's blocks (Q1, Q2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Group
from kvproof.suites.framework.component_suite import Draw
from kvproof.suites.framework.draws import sampled_from

ChangeGroups: TypeAlias = Callable[[Sequence[Group], Profile, int, Draw], tuple[Group, ...]]
"""Changes the groups of a drawn configuration, whose blocks so many context ranks share."""


def compressed(
    groups: Sequence[Group], profile: Profile, ranks: int, draw: Draw
) -> tuple[Group, ...]:
    """Give groups entries of several tokens, layers of other ratios, and one of them a sidecar."""
    found = [_with_ratio(group, profile, ranks, draw) for group in groups]
    able = [index for index, group in enumerate(found) if group.visibility.by_position]
    if not (profile.sidecars and able and draw(sampled_from((True, True, False)))):
        return tuple(found)
    index = draw(sampled_from(tuple(able)))
    alike = replace(found[index], beside=index, ratio=1, kernel_block_size=0)
    return (*found, _with_ratio(alike, profile, ranks, draw))


def _with_ratio(group: Group, profile: Profile, ranks: int, draw: Draw) -> Group:
    size = group.kernel_size // ranks
    able = [each for each in profile.compression if size % each == 0]
    if group.kind not in profile.compressed_kinds or not able:
        return group
    ratio = draw(sampled_from((1, *able)))
    if not profile.further_layers:
        return replace(group, ratio=ratio)
    further = draw(sampled_from(((), (ratio,), (ratio, able[-1]), (able[0],))))
    return replace(group, ratio=ratio, further_ratios=further)
