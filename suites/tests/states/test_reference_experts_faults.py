"""Each property of the suite `experts` sees the fault that it is there for."""

from __future__ import annotations

import pytest

from kvproof.suites.reference.routed_experts.strategies import SUITE
from kvproof.suites.tests.framework.suite_faults import Planted, catalogued, falls

FAULTS = (
    *catalogued("experts"),
    Planted(
        "256 experts take two bytes each",
        "expert_ids_are_small_integers",
        "cache.routed_experts",
        "np.uint8 if self.experts <= 256",
        "np.uint8 if self.experts < 256",
    ),
    Planted(
        "ids that no expert has wrap around",
        "unfit_expert_rows_are_refused",
        "cache.routed_experts",
        "if given.size and not 0 <= given.min() <= given.max() < self.experts:",
        "if given.size and given.min() < 0:",
    ),
    Planted(
        "the rows of a hit lie one unit late (vLLM #35744: rows by another group's table)",
        "returned_expert_rows_are_right",
        "cache.routed_experts",
        "            at += count * unit\n",
        "            at += have * unit\n",
    ),
    Planted(
        "the last token is given a row too (vLLM: it has none)",
        "expert_rows_cover_all_tokens_but_the_last",
        "cache.routed_experts",
        "size = max(total - 1, 0)",
        "size = total",
    ),
    Planted(
        "units that have rows already count as filled",
        "gaps_in_expert_rows_are_filled",
        "cache.routed_experts",
        "filled = store.known.count(0, first, first + count)",
        "filled = count",
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.story)
def test_a_planted_fault_is_seen_by_its_property(fault):
    falls(SUITE, FAULTS.index(fault), fault)


def test_every_property_has_its_fault():
    assert {fault.property for fault in FAULTS} == {prop.name for prop in SUITE.properties}
