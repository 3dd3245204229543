"""The suite `keys`: each property finds a fault of the keys, whatever a second process computes."""

from __future__ import annotations

from functools import partial

import pytest

from kvproof.suites.faults.catalogue import of_suite
from kvproof.suites.framework.component_suite import run
from kvproof.suites.reference.object_keys.machine import ObjectKeysMachine
from kvproof.suites.reference.object_keys.strategies import SUITE
from kvproof.suites.tests.agreement.agreement_kit import component_agrees
from kvproof.suites.tests.framework.planted import load, plant
from kvproof.suites.tests.framework.suite_faults import falls, of_property


@pytest.mark.parametrize("fault", of_property("keys"), ids=lambda fault: fault.name)
def test_a_planted_fault_falls_to_its_property(fault, tmp_path):
    plant(fault.name, fault)
    subject = load(fault.name, "reference.core.identity")
    found = falls(SUITE._replace(machine=partial(ObjectKeysMachine, subject=subject)), fault)
    component_agrees(found, tmp_path, SUITE)


def test_every_property_has_a_fault():
    assert {fault.property for fault in of_suite("keys")} == {p.name for p in SUITE.properties}


def test_verbs_without_a_request_are_ignored():
    history = run(SUITE, {"algorithm": "sha256", "block_size": 2}, [("ask", {"of": 3})])
    assert history.operations[0].answer == ""
