"""The suite `http` passes on the reference, and each property finds the faults of its kind."""

from __future__ import annotations

import pytest
from hypothesis import settings

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("prometheus_client", reason="the extra serve is not installed")

from kvproof.suites.reference.http_server.strategies import SUITE
from kvproof.suites.tests.framework.suite_faults import (
    UNSHRUNK,
    Planted,
    catalogued,
    falls,
    sees_everything,
)

FAULTS = (
    *catalogued("http"),
    Planted(
        "a salt is no part of the key",
        "clients_find_nothing_else",
        "server.request_options",
        "return Namespace(salt=salt)",
        "return Namespace(salt=salt[:0])",
    ),
)
ENOUGH = settings(UNSHRUNK, max_examples=90)
"""Test cases in which everything is seen, mostly."""
FEW = settings(UNSHRUNK, max_examples=60)
"""A fault shows in one kind of server: the others are not to take long before; see `fallen`."""


@pytest.mark.slow(reason="finds planted faults by exploration")
def test_the_reference_passes_and_everything_is_seen():
    sees_everything(SUITE, ENOUGH)


@pytest.mark.slow(reason="finds planted faults by exploration")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.story)
def test_a_planted_fault_falls_to_its_property(fault):
    falls(SUITE, FAULTS.index(fault), fault, FEW)


def test_every_property_has_its_fault():
    assert {fault.property for fault in FAULTS} == {prop.name for prop in SUITE.properties}
