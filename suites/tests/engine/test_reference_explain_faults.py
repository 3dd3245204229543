"""Each property of the suite `explain` sees the faults that it is there for."""

from __future__ import annotations

import pytest

from kvproof.suites.reference.explain.strategies import SUITE
from kvproof.suites.tests.fast_share import one_in
from kvproof.suites.tests.framework.suite_faults import Planted, catalogued, falls

FAULTS = (
    *catalogued("explain"),
    Planted(
        "what an earlier epoch computed counts as reusable",
        "explained_causes_add_up",
        "observe.explainer",
        'reused (H6)."""\n        self._known_index = InfiniteCacheIndex()',
        'reused (H6)."""',
    ),
    Planted(
        "what nobody was allowed to store counts as reusable",
        "explained_causes_add_up",
        "observe.explainer",
        "if current and request.access.write:",
        "if current:",
    ),
    Planted(
        "tokens that a cancelled request was still computing count as reusable",
        "explained_causes_add_up",
        "observe.explainer",
        " and not request.released",
        "",
    ),
    Planted(
        "a fork of two histories loses its checkpoints",
        "lifting_a_limit_raises_the_hit",
        "prefix.infinite_cache",
        "self._saves.setdefault(node, {})[inside] = saved",
        "self._saves.setdefault(back, {})[inside] = saved",
    ),
    Planted(
        "a state that there was no room for counts as saved",
        "lifting_a_limit_raises_the_hit",
        "prefix.infinite_cache",
        "if mark <= inside and (was or not saved)",
        "if mark <= inside",
    ),
    Planted(
        "a hit that requires expert rows ends a unit before the last that has them",
        "lifting_a_limit_raises_the_hit",
        "cache.hit_length",
        "recorded = self._experts.clamp(node, limit)",
        "recorded = max(0, self._experts.clamp(node, limit) - self._unit)",
    ),
    Planted(
        "the first unit behind a hit keeps no expert rows",
        "lifting_a_limit_raises_the_hit",
        "cache.routed_experts",
        "first = max(piece.first, whole)",
        "first = max(piece.first, whole + 1)",
    ),
)


@pytest.mark.parametrize(
    "fault",
    one_in(4, FAULTS, reason="finds planted faults by exploration"),
    ids=lambda fault: fault.story,
)
def test_a_planted_fault_is_seen_by_its_property(fault):
    falls(SUITE, FAULTS.index(fault), fault)


def test_every_property_has_its_fault():
    assert {fault.property for fault in FAULTS} == {prop.name for prop in SUITE.properties}
