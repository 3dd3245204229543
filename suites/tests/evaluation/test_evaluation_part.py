"""The part `evaluation` passes on our own code and sees everything; what it asks is heard."""

from __future__ import annotations

from kvproof.suites.faults.catalogue import of_suite
from kvproof.suites.reference.evaluation.strategies import PART
from kvproof.suites.tests.framework.part_faults import sees_everything


def test_the_part_passes_and_everything_is_seen():
    sees_everything(PART)


def test_every_property_has_its_fault_in_the_catalogue():
    assert {fault.property for fault in of_suite("evaluation")} == {p.name for p in PART.properties}
