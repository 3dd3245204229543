"""Workload profiles: names for levels that are drawn more often, with the traffic that they need.

A budget is dealt out evenly to them, so that no situation depends on luck. Every other factor of
the table is drawn, too: half of a profile's histories have rows of the covering array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, get_args

from kvproof.harness.contract.profile import HostPolicy, Profile
from kvproof.suites.conformance import scenarios
from kvproof.suites.conformance.compressed import ChangeGroups, compressed
from kvproof.suites.conformance.scenarios import Scenario
from kvproof.suites.conformance.table import (
    BOTH_WINDOWS,
    LARGE,
    LEAST,
    NONE,
    OFF,
    ON,
    ONE,
    TWO,
    factors,
    may_be_unequal,
)
from kvproof.suites.framework.dealt import DealtRows
from kvproof.suites.framework.property import Level
from kvproof.suites.framework.rows import Given

_EITHER = (ONE, TWO)


class WorkloadProfile(NamedTuple):
    """The levels and the traffic of one profile's histories."""

    name: str
    given: Given
    """Factor -> its level, or those to draw from; factors that a target lacks do not count."""
    scenarios: tuple[Scenario, ...] = ()
    """Operation sequences that bring about its rare situations."""
    needs: Callable[[Profile], bool] = lambda _: True
    """Whether a target's profile has the layout or the feature."""
    change: ChangeGroups | None = None
    """Change of the groups of each configuration; its rows are none of the covering array."""


_NOT_ONE = ("2", "3", "4", "5", "7", "8", LARGE)
_POLICIES = get_args(HostPolicy)
_ONE_GROUP = {"full": ONE, "window": NONE, "chunk": NONE, "state": NONE, "draft group": NONE}
_PLAIN = {**_ONE_GROUP, "partial": OFF, "host": NONE}
_REUSED = {"caching": ON, "pool": ("few", "many", "many")}
"""Levels under which prompts come back often."""
_CORE_SCENARIOS = (
    scenarios.repeat,
    scenarios.resume,
    scenarios.change_tenant,
    scenarios.media_reuse,
    scenarios.read_batch,
    scenarios.fill_the_pool,
)
CORE = WorkloadProfile(
    "core",
    {
        **_PLAIN,
        "experts": "optional",
        "expert rows": "all",
        "draft tokens": OFF,
        "keys": OFF,
        "embeddings": OFF,
    },
    _CORE_SCENARIOS,
)
"""One group of full attention, without drafts."""

_EVERYWHERE = (
    *_CORE_SCENARIOS,
    scenarios.pin_under_eviction,
    scenarios.reset_and_repeat,
    scenarios.shared_continuation,
)


def _states(pool: str) -> WorkloadProfile:
    def needs(profile: Profile) -> bool:
        return "state" in profile.groups and pool in profile.state_pools

    return WorkloadProfile(
        f"states in a {pool} pool",
        {"state": _EITHER, "states in": pool, "partial": OFF, "host": NONE},
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
    )


def _keeps_a_grid(profile: Profile) -> bool:
    """Whether states are cached at whole blocks only, and steps may end inside blocks."""
    sizes = profile.state_block_sizes or profile.block_sizes
    return "state" in profile.groups and profile.stores == "checkpointed" and max(sizes) > 1


FULL = (
    WorkloadProfile("plain", _PLAIN, _EVERYWHERE),
    WorkloadProfile(
        "tiny pools",
        {"pool": LEAST, "host": NONE},
        _EVERYWHERE,
    ),
    WorkloadProfile(
        "compressed groups",
        {
            "block size": ("2", "4", LARGE),
            "partial": (ON, OFF),
            "draft tokens": ("few", "many"),
            "host": NONE,
            **_REUSED,
        },
        (
            scenarios.repeat,
            scenarios.slide_windows,
            scenarios.continue_inside,
            scenarios.reject_drafts,
            scenarios.resume,
        ),
        lambda profile: bool(profile.compression) or profile.sidecars,
        compressed,
    ),
    WorkloadProfile(
        "media",
        {**_PLAIN, "block size": _NOT_ONE, "spans": "many", "forks": "many"},
        (scenarios.media_reuse, scenarios.cut_spans, scenarios.repeat, scenarios.decode_over_media),
        lambda profile: profile.spans,
    ),
    WorkloadProfile(
        "partial blocks",
        {"partial": ON, "state": NONE},
        (scenarios.continue_inside, scenarios.repeat, scenarios.resume),
        lambda profile: profile.partial_blocks,
    ),
    WorkloadProfile(
        "host tier",
        {"host": _POLICIES, "state": NONE},
        (
            scenarios.return_after_eviction,
            scenarios.return_after_eviction,
            scenarios.slide_windows,
            scenarios.resume,
            scenarios.reset_and_repeat,
        ),
        lambda profile: bool(profile.host_policies),
    ),
    WorkloadProfile(
        "states on the host",
        {"host": _POLICIES, "state": _EITHER},
        (
            scenarios.return_after_eviction,
            scenarios.return_after_eviction,
            scenarios.generate,
            scenarios.diverge,
            scenarios.reset_and_repeat,
        ),
        lambda profile: bool(profile.host_policies) and "state" in profile.host_groups,
    ),
    WorkloadProfile(
        "experts",
        {"expert rows": "some", "experts": ("required", "required", "optional")},
        (scenarios.backfill_experts, scenarios.backfill_experts, scenarios.repeat),
        lambda profile: profile.experts,
    ),
    WorkloadProfile(
        "drafts",
        {"draft tokens": "many"},
        (
            scenarios.reject_drafts,
            scenarios.unequal_drafts,
            scenarios.unequal_drafts,
            scenarios.generate,
            scenarios.repeat,
        ),
        lambda profile: profile.drafts,
    ),
    WorkloadProfile(
        "draft groups",
        {"draft group": ("full", "full", "window", "chunk"), **_REUSED},
        (scenarios.slide_windows, scenarios.repeat),
        lambda profile: profile.draft_groups,
    ),
    WorkloadProfile(
        "windows",
        {"window": _EITHER},
        (scenarios.slide_windows, scenarios.slide_windows, scenarios.overlap),
        lambda profile: "window" in profile.groups,
    ),
    WorkloadProfile(
        "chunks",
        {"chunk": _EITHER},
        (scenarios.slide_windows, scenarios.overlap, scenarios.cut_back, scenarios.cut_back),
        lambda profile: "chunk" in profile.groups,
    ),
    WorkloadProfile(
        "unequal drafts",
        {"draft group": BOTH_WINDOWS, **_REUSED},
        (scenarios.slide_windows, scenarios.unequal_drafts, scenarios.repeat),
        may_be_unequal,
    ),
    WorkloadProfile(
        "unequal blocks",
        {"blocks": "unequal"},
        (scenarios.slide_windows, scenarios.overlap, scenarios.repeat),
        lambda profile: profile.mixed_block_sizes,
    ),
    _states("shared"),
    _states("separate"),
    WorkloadProfile(
        "states between steps",
        {"state": _EITHER, "block size": _NOT_ONE},
        (scenarios.uneven_chunks,),
        _keeps_a_grid,
    ),
    WorkloadProfile(
        "states inside blocks",
        {"state": _EITHER, "partial": ON, "block size": _NOT_ONE},
        (
            scenarios.continue_inside,
            scenarios.continue_inside,
            scenarios.change_an_early_span,
            scenarios.generate,
            scenarios.repeat,
        ),
        lambda profile: profile.partial_states,
    ),
    WorkloadProfile(
        "keys and embeddings",
        {**_PLAIN, "keys": ON, "embeddings": ON, "forks": "many"},
        (scenarios.change_identity, scenarios.change_identity, scenarios.resume),
        lambda profile: profile.keys or profile.embeddings,
    ),
    WorkloadProfile(
        "hybrids",
        {},
        scenarios.ALL,
        lambda profile: len(profile.groups) > 1,
    ),
)
"""The profiles of the level `full`."""


_CALLED: Mapping[tuple[str, str], tuple[Scenario, ...]] = {
    ("spans", "many"): (scenarios.cut_spans, scenarios.media_reuse),
    ("keys", ON): (scenarios.change_identity,),
    ("embeddings", ON): (scenarios.change_identity,),
    ("draft tokens", "many"): (scenarios.unequal_drafts, scenarios.reject_drafts),
    ("pins", ON): (scenarios.pin_under_eviction,),
    ("expert rows", "some"): (scenarios.backfill_experts,),
    ("partial", ON): (scenarios.continue_inside,),
    ("state", TWO): (scenarios.diverge,),
    ("window", TWO): (scenarios.slide_windows,),
    ("chunk", TWO): (scenarios.cut_back,),
}
"""Level -> sequences that bring about its rare situations, whatever the profile."""


def called(row: Mapping[str, str]) -> tuple[Scenario, ...]:
    """Return the sequences that the levels of a row call for."""
    return tuple(each for level, own in _CALLED.items() if level in row.items() for each in own)


def profiles(profile: Profile, level: Level) -> tuple[WorkloadProfile, ...]:
    """Return the workload profiles for a target."""
    if level == "core":
        return (CORE,)
    return tuple(each for each in FULL if each.needs(profile))


def rows_of(profile: Profile, level: Level) -> DealtRows:
    """Return the rows of a target's workload profiles."""
    table = factors(profile)
    within = table.within(CORE.given) if level == "core" else table
    dealt = [each for each in profiles(profile, level) if each.change is None]
    return DealtRows(within, {each.name: each.given for each in dealt})
