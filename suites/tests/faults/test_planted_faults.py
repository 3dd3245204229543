"""Each property of a component suite finds a fault alone, and its script and its replay agree.

`kvproof faults` runs all faults.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from kvproof.suites.faults.catalogue import PlantedFault, of_suite
from kvproof.suites.runner.registry import SUITES
from kvproof.suites.tests.agreement.agreement_kit import component_agrees
from kvproof.suites.tests.fast_share import one_in
from kvproof.suites.tests.framework.suite_faults import UNSHRUNK, broken, falls, of_property

ELSEWHERE = {
    "engine": "faults of engines' own loops",
    "keys": "a second process computes keys, too: test_keys",
    "objects": "faults of the store, by the suite of its server",
    "prefixes": "faults of a plain server: test_store_prefixes_plain",
}
PARTS = {suite.name: suite for suite in SUITES if suite.name not in ELSEWHERE}
BUDGETS = {"http": settings(UNSHRUNK, max_examples=60)}
"""A fault of the server shows in one kind of server: the others are not to take long before."""

LONG = (
    "a_hit_needs_the_states_of_all_chunks",
    "lease_does_not_hold",
    "slot_repacked_while_copied",
    "state_gets_a_block_too_many",
)
"""Faults that many histories do not show."""
FAULTS = [
    fault
    for suite in PARTS
    for fault in of_property(suite)
    if fault.name != "the_oldest_compute_in_every_step"  # more than a minute: kvproof faults
]


@pytest.fixture(autouse=True)
def _compiled_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have chosen Triton's interpreter, which is slow."""
    if find_spec("torch"):
        monkeypatch.setattr("kvproof.kernels.block_transfer.launch.runs_triton", lambda _: False)


@pytest.mark.parametrize(
    "fault",
    one_in(10, FAULTS, reason="finds planted faults by exploration", but=LONG),
    ids=lambda fault: fault.name,
)
def test_a_planted_fault_falls_to_its_property(fault: PlantedFault, tmp_path: Path) -> None:
    part = PARTS[fault.suite]
    if why := part.missing():
        pytest.skip(why)
    found = falls(broken(part, fault), fault, BUDGETS.get(fault.suite, UNSHRUNK))
    component_agrees(found, tmp_path, part)


@pytest.mark.parametrize("suite", PARTS)
def test_every_property_has_a_fault(suite: str) -> None:
    properties = {prop.name for prop in PARTS[suite].properties}
    assert {fault.property for fault in of_suite(suite)} == properties
