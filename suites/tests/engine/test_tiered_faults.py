"""The suite `tiered` passes on the reference, and each property finds a fault of its kind."""

from __future__ import annotations

import pytest

from kvproof.suites.reference.tiered_hits.properties import MIXES
from kvproof.suites.reference.tiered_hits.strategies import GROUPS, SUITE
from kvproof.suites.tests.framework.suite_faults import Planted, falls, sees_everything

FAULTS = (
    Planted(
        "the plan forgets that a draft group sees one unit less",
        "tiers_hit_what_a_pool_without_end_hits",
        "tiers.plan",
        "reach = length + 1 if self.any_draft else length",
        "reach = length",
    ),
    Planted(
        "of evicted units the last one is not kept",
        "tiers_hit_what_a_pool_without_end_hits",
        "tiers.tiers",
        "        new = [each for each in leaving if not self.host.holds(each.key)]\n",
        "        new = [each for each in leaving if not self.host.holds(each.key)][:-1]\n",
    ),
    Planted(
        "keys depend on the process",
        "a_new_engine_hits_what_others_shared",
        "tiers.tiers",
        "self._keys = ObjectKeys(cache.config, options.weights, mover.geometry)",
        "self._keys = ObjectKeys(cache.config, options.weights, mover.geometry + str(id(self)))",
    ),
    Planted(
        "what is in host memory when an engine closes is not shared",
        "a_new_engine_hits_what_others_shared",
        "tiers.tiers",
        "            self.host.flush()\n",
        "            pass\n",
    ),
)


@pytest.mark.slow(reason="explores until every situation occurs")
def test_the_reference_passes_and_everything_is_seen():
    sees_everything(SUITE)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.story)
def test_a_planted_fault_falls_to_its_property(fault):
    falls(SUITE, FAULTS.index(fault), fault)


def test_every_property_has_its_fault():
    assert {fault.property for fault in FAULTS} == {prop.name for prop in SUITE.properties}


def test_every_mix_has_its_groups():
    assert set(MIXES) == set(GROUPS)
