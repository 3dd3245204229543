"""The suite `evaluation` passes on our own code and sees everything; what it asks is heard."""

from __future__ import annotations

import pytest

from kvproof.suites.faults.catalogue import of_suite
from kvproof.suites.reference.evaluation.strategies import SUITE
from kvproof.suites.tests.framework.suite_faults import sees_everything


@pytest.mark.slow(reason="explores until every situation occurs")
def test_the_part_passes_and_everything_is_seen():
    sees_everything(SUITE)


def test_every_property_has_its_fault_in_the_catalogue():
    assert {fault.property for fault in of_suite("evaluation")} == {
        p.name for p in SUITE.properties
    }
