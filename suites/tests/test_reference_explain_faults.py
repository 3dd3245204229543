"""Each property of the part `explain` sees the faults that it is there for."""

from __future__ import annotations

import pytest

from kvproof.suites.explain.part import PART
from kvproof.suites.tests.part_faults import Planted, falls

FAULTS = (
    Planted(
        "the last token counts as reusable",
        "explained_causes_add_up",
        "explain",
        "most = max(0, request.prompt - 1)",
        "most = request.prompt",
    ),
    Planted(
        "what an earlier epoch computed counts as reusable",
        "explained_causes_add_up",
        "explain",
        "        self.manager.reset()\n        self._ghost = GhostIndex()",
        "        self.manager.reset()",
    ),
    Planted(
        "what nobody was allowed to store counts as reusable",
        "explained_causes_add_up",
        "explain",
        "if current and request.access.write:",
        "if current:",
    ),
    Planted(
        "tokens that a cancelled request was still computing count as reusable",
        "explained_causes_add_up",
        "explain",
        " and not request.released",
        "",
    ),
    Planted(
        "a fork of two histories loses its checkpoints",
        "lifting_a_limit_raises_the_hit",
        "ghost_index",
        "self._saves.setdefault(node, {})[inside] = saved",
        "self._saves.setdefault(back, {})[inside] = saved",
    ),
    Planted(
        "a state that there was no room for counts as saved",
        "lifting_a_limit_raises_the_hit",
        "ghost_index",
        "if mark <= inside and (was or not saved)",
        "if mark <= inside",
    ),
    Planted(
        "draft layers cost nothing",
        "lifting_a_limit_raises_the_hit",
        "explain",
        "min(length, max(0, limit - unit))",
        "min(length, limit)",
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.story)
def test_a_planted_fault_is_seen_by_its_property(fault):
    falls(PART, FAULTS.index(fault), fault)


def test_every_property_has_its_fault():
    assert {fault.property for fault in FAULTS} == {prop.name for prop in PART.properties}
