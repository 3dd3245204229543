"""The suite `access` passes on the reference, and each property finds a fault of its kind."""

from __future__ import annotations

import pytest

from kvproof.suites.faults.catalogue import of_suite
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.reference.cache_policy.strategies import SUITE
from kvproof.suites.tests.framework.planted import Fault, load, plant
from kvproof.suites.tests.framework.suite_faults import fallen, sees_everything

FAULTS = {
    "a_reason_is_kept_back": (
        Fault("reference.core.cache_policy", '        "asked not to store": not store,\n', ""),
        "a_decision_names_every_reason",
    ),
    "reads_what_it_may_not": (
        Fault("reference.cache.cache_manager", " if state.access.read else NO_HIT", ""),
        "a_decision_is_what_happens",
    ),
    **{f.name: (Fault(f.module, f.old, f.new), f.property) for f in of_suite("access")},
}
for _name, (_fault, _) in FAULTS.items():
    plant(_name, _fault)


@pytest.mark.slow(reason="explores until every situation occurs")
def test_the_reference_passes_and_everything_is_seen():
    sees_everything(SUITE, BUDGETS["pr"])


@pytest.mark.slow(reason="finds planted faults by exploration")
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_by_its_property(name):
    prop = FAULTS[name][1]
    others = {each.name for each in SUITE.properties} - {prop}
    part = load(name, "suites.reference.cache_policy.strategies").SUITE
    seen = fallen(lambda seed: explore(part, BUDGETS["pr"], seed=seed, tolerate=others))
    assert seen.violation is not None
    assert seen.violation.property == prop
