"""Workload profiles: one kind of layout each, with the traffic that it needs.

A budget is dealt out evenly, so that no situation depends on luck. Within a profile everything else
stays possible, only less often.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

from hypothesis import strategies as st

from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import TargetConfig
from kvproof.suites.conformance import scenarios
from kvproof.suites.conformance.configs import (
    LayoutConstraint,
    any_layout,
    configurations,
    hosted,
    may_be_unequal,
    one_group,
    several,
    unfilled,
)
from kvproof.suites.conformance.scenarios import Scenario
from kvproof.suites.conformance.weights import Weights
from kvproof.suites.framework.property import Level

Configs: TypeAlias = Callable[[Profile], st.SearchStrategy[TargetConfig]]


class WorkloadProfile(NamedTuple):
    """Configurations and traffic of one profile's histories."""

    name: str
    configs: Configs
    scenarios: tuple[Scenario, ...] = ()
    """Operation sequences that bring about its rare situations."""
    needs: Callable[[Profile], bool] = lambda _: True
    """Whether a target's profile has the layout or the feature."""
    weights: Weights = Weights()


_CORE_SCENARIOS = (
    scenarios.repeat,
    scenarios.resume,
    scenarios.change_tenant,
    scenarios.media_reuse,
    scenarios.read_batch,
    scenarios.fill_the_pool,
)
CORE = WorkloadProfile("core", configurations, _CORE_SCENARIOS)
"""One group of full attention, without drafts; more than two spans only in their scenarios."""

_EVERYWHERE = (
    *_CORE_SCENARIOS,
    scenarios.pin_under_eviction,
    scenarios.reset_and_repeat,
    scenarios.shared_continuation,
)

_USUAL = Weights(runs_of_spans=1, drafts=1, forks=2)


def _full(
    name: str,
    configs: Configs,
    sequences: tuple[Scenario, ...],
    needs: Callable[[Profile], bool] = lambda _: True,
    **weights: int,
) -> WorkloadProfile:
    return WorkloadProfile(name, configs, sequences, needs, _USUAL._replace(**weights))


def _states(pool: str) -> WorkloadProfile:
    def needs(profile: Profile) -> bool:
        return "state" in profile.groups and pool in profile.state_pools

    return _full(
        f"states in a {pool} pool",
        partial(several, constraint=LayoutConstraint(kind="state", pool=pool)),
        (
            scenarios.diverge,
            scenarios.diverge,
            scenarios.generate,
            scenarios.reject_drafts,
            scenarios.repeat,
            scenarios.crowded_rows,
            scenarios.media_reuse,
        ),
        needs,
        drafts=2,
    )


def _keeps_a_grid(profile: Profile) -> bool:
    """Whether states are cached at whole blocks only, and steps may end inside blocks."""
    sizes = profile.state_block_sizes or profile.block_sizes
    return "state" in profile.groups and profile.stores == "checkpointed" and max(sizes) > 1


FULL = (
    _full("plain", configurations, _EVERYWHERE),
    _full(
        "tiny pools",
        partial(any_layout, constraint=LayoutConstraint(least_units=1, most_units=3)),
        _EVERYWHERE,
    ),
    _full(
        "media",
        partial(one_group, least_size=2),
        (scenarios.media_reuse, scenarios.cut_spans, scenarios.repeat, scenarios.decode_over_media),
        lambda profile: profile.spans,
        runs_of_spans=6,
        overlapping_clamps=2,
        forks=4,
    ),
    _full(
        "partial blocks",
        unfilled,
        (scenarios.continue_inside, scenarios.repeat, scenarios.resume),
        lambda profile: profile.partial_blocks,
    ),
    _full(
        "host tier",
        hosted,
        (
            scenarios.return_after_eviction,
            scenarios.return_after_eviction,
            scenarios.slide_windows,
            scenarios.resume,
            scenarios.reset_and_repeat,
        ),
        lambda profile: bool(profile.host_policies),
    ),
    _full(
        "states on the host",
        partial(several, constraint=LayoutConstraint(kind="state", host=True)),
        (
            scenarios.return_after_eviction,
            scenarios.return_after_eviction,
            scenarios.generate,
            scenarios.diverge,
            scenarios.reset_and_repeat,
        ),
        lambda profile: bool(profile.host_policies) and "state" in profile.host_groups,
    ),
    _full(
        "experts",
        partial(any_layout, constraint=LayoutConstraint(strict_often=True)),
        (scenarios.backfill_experts, scenarios.backfill_experts, scenarios.repeat),
        lambda profile: profile.experts,
        unrouted=3,
    ),
    _full(
        "drafts",
        any_layout,
        (
            scenarios.reject_drafts,
            scenarios.unequal_drafts,
            scenarios.unequal_drafts,
            scenarios.generate,
            scenarios.repeat,
        ),
        lambda profile: profile.drafts,
        drafts=5,
    ),
    _full(
        "draft groups",
        partial(several, constraint=LayoutConstraint(draft=True)),
        (scenarios.slide_windows, scenarios.repeat),
        lambda profile: profile.draft_groups,
        drafts=3,
    ),
    _full(
        "windows",
        partial(several, constraint=LayoutConstraint(kind="window")),
        (scenarios.slide_windows, scenarios.slide_windows, scenarios.overlap),
        lambda profile: "window" in profile.groups,
    ),
    _full(
        "chunks",
        partial(several, constraint=LayoutConstraint(kind="chunk", across=True)),
        (scenarios.slide_windows, scenarios.overlap, scenarios.cut_back, scenarios.cut_back),
        lambda profile: "chunk" in profile.groups,
    ),
    _full(
        "unequal drafts",
        partial(several, constraint=LayoutConstraint(unequal=True)),
        (scenarios.slide_windows, scenarios.unequal_drafts, scenarios.repeat),
        may_be_unequal,
        drafts=3,
    ),
    _full(
        "unequal blocks",
        partial(several, constraint=LayoutConstraint(mixed=True)),
        (scenarios.slide_windows, scenarios.overlap, scenarios.repeat),
        lambda profile: profile.mixed_block_sizes,
    ),
    _states("shared"),
    _states("separate"),
    _full(
        "states between steps",
        partial(several, constraint=LayoutConstraint(kind="state", least_size=2)),
        (scenarios.uneven_chunks,),
        _keeps_a_grid,
    ),
    _full(
        "states inside blocks",
        partial(several, constraint=LayoutConstraint(kind="state", pool="separate", inside=True)),
        (
            scenarios.continue_inside,
            scenarios.continue_inside,
            scenarios.change_an_early_span,
            scenarios.generate,
            scenarios.repeat,
        ),
        lambda profile: profile.partial_states,
    ),
    _full(
        "keys and embeddings",
        configurations,
        (scenarios.change_identity, scenarios.change_identity, scenarios.resume),
        lambda profile: profile.keys or profile.embeddings,
        forks=4,
    ),
    _full(
        "hybrids",
        partial(several, constraint=LayoutConstraint()),
        scenarios.ALL,
        lambda profile: len(profile.groups) > 1,
        runs_of_spans=3,
        overlapping_clamps=1,
        drafts=3,
        unrouted=1,
    ),
)
"""The profiles of the level `full`."""


def profiles(profile: Profile, level: Level) -> tuple[WorkloadProfile, ...]:
    """Return the workload profiles for a target."""
    if level == "core":
        return (CORE,)
    return tuple(each for each in FULL if each.needs(profile))
