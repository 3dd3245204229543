"""Themes: each history is drawn for one kind of layout and the traffic that is rare elsewhere.

A budget is dealt out evenly, so that no situation depends on how often its kind happens to be
drawn. Within a theme everything else stays possible, only less often.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

from hypothesis import strategies as st

from kvproof.harness.contract.target import Profile, TargetConfig
from kvproof.suites.conformance import scenarios as habits
from kvproof.suites.conformance.configs import (
    Wish,
    any_layout,
    configurations,
    hosted,
    one_group,
    several,
)
from kvproof.suites.conformance.scenarios import Habit
from kvproof.suites.framework.property import Level

Configs: TypeAlias = Callable[[Profile], st.SearchStrategy[TargetConfig]]

EIGHTHS = 8
"""In which the fields of a theme say how often something is drawn."""


class Theme(NamedTuple):
    """What the histories of one theme are drawn from."""

    name: str
    configs: Configs
    habits: tuple[Habit, ...] = ()
    """Sequences of operations that bring about its rare situations."""
    needs: Callable[[Profile], bool] = lambda _: True
    """Whether a target's profile has what the theme is about."""
    runs_of_spans: int = 0
    """Eighths of the prompts that get up to five spans."""
    bridges: int = 0
    """Eighths of the prompts whose clamp needs two rounds."""
    drafts: int = 0
    """Eighths of the extensions that have draft tokens."""
    unrouted: int = 0
    """Eighths of the steps that complete without expert rows."""
    forks: int = 0
    """Eighths of the prompts that leave an earlier one anywhere, also inside a span."""


_CORE_HABITS = (
    habits.repeat,
    habits.resume,
    habits.change_tenant,
    habits.show,
    habits.read_batch,
)
CORE = Theme("core", configurations, _CORE_HABITS)
"""One group of full attention, no drafts, no more than two spans but where they are shown."""

_EVERYWHERE = (*_CORE_HABITS, habits.hold, habits.begin_anew, habits.converse)

_full = partial(Theme, runs_of_spans=1, drafts=1, forks=2)


def _states(pool: str) -> Theme:
    def needs(profile: Profile) -> bool:
        return "state" in profile.groups and pool in profile.state_pools

    return _full(
        f"states in a {pool} pool",
        partial(several, wish=Wish(kind="state", pool=pool)),
        (habits.leave, habits.leave, habits.generate, habits.reject, habits.repeat, habits.crowd),
        needs,
        drafts=2,
    )


def _keeps_a_grid(profile: Profile) -> bool:
    """Tell whether states are cached at whole blocks only, and steps may end inside of them."""
    sizes = profile.state_block_sizes or profile.block_sizes
    return "state" in profile.groups and profile.stores == "checkpointed" and max(sizes) > 1


FULL = (
    _full("plain", configurations, _EVERYWHERE),
    _full("tiny pools", partial(any_layout, wish=Wish(most_units=3)), _EVERYWHERE),
    _full(
        "media",
        partial(one_group, least_size=2),
        (habits.show, habits.cut_spans, habits.repeat, habits.narrate),
        lambda profile: profile.spans,
        runs_of_spans=6,
        bridges=2,
        forks=4,
    ),
    _full(
        "partial blocks",
        partial(one_group, least_size=2, partial_blocks=True),
        (habits.continue_inside, habits.repeat, habits.resume),
        lambda profile: profile.partial_blocks,
    ),
    _full(
        "host tier",
        hosted,
        (habits.come_back, habits.come_back, habits.slide, habits.resume, habits.begin_anew),
        lambda profile: bool(profile.host_policies),
    ),
    _full(
        "states on the host",
        partial(several, wish=Wish(kind="state", host=True)),
        (habits.come_back, habits.come_back, habits.generate, habits.leave, habits.begin_anew),
        lambda profile: bool(profile.host_policies) and "state" in profile.host_groups,
    ),
    _full(
        "experts",
        partial(any_layout, wish=Wish(strict_often=True)),
        (habits.fill, habits.fill, habits.repeat),
        lambda profile: profile.experts,
        unrouted=3,
    ),
    _full(
        "drafts",
        any_layout,
        (habits.reject, habits.generate, habits.repeat),
        lambda profile: profile.drafts,
        drafts=5,
    ),
    _full(
        "draft groups",
        partial(several, wish=Wish(draft=True)),
        (habits.slide, habits.repeat),
        lambda profile: profile.draft_groups,
        drafts=3,
    ),
    _full(
        "windows",
        partial(several, wish=Wish(kind="window")),
        (habits.slide, habits.slide, habits.overlap),
        lambda profile: "window" in profile.groups,
    ),
    _full(
        "chunks",
        partial(several, wish=Wish(kind="chunk", across=True)),
        (habits.slide, habits.overlap, habits.cut_back, habits.cut_back),
        lambda profile: "chunk" in profile.groups,
    ),
    _states("shared"),
    _states("separate"),
    _full(
        "states between steps",
        partial(several, wish=Wish(kind="state", least_size=2)),
        (habits.chop,),
        _keeps_a_grid,
    ),
    _full(
        "states inside blocks",
        partial(several, wish=Wish(kind="state", pool="separate", inside=True)),
        (habits.continue_inside, habits.continue_inside, habits.generate, habits.repeat),
        lambda profile: profile.partial_states,
    ),
    _full(
        "hybrids",
        partial(several, wish=Wish()),
        habits.ALL,
        lambda profile: len(profile.groups) > 1,
        runs_of_spans=3,
        bridges=1,
        drafts=3,
        unrouted=1,
    ),
)
"""The level `full`; a budget goes round them."""


def themes(profile: Profile, level: Level) -> tuple[Theme, ...]:
    """Return the themes that a target is driven by."""
    if level == "core":
        return (CORE,)
    return tuple(theme for theme in FULL if theme.needs(profile))
