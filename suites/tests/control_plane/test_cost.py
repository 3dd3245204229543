"""The suite `cost` passes on the reference, and each property finds a fault of its kind."""

from __future__ import annotations

import pytest

from kvproof.suites.reference.complexity.machine import lines_of
from kvproof.suites.reference.complexity.strategies import SUITE
from kvproof.suites.tests.framework.suite_faults import Planted, catalogued, falls, sees_everything

FAULTS = (
    *catalogued("cost"),
    Planted(
        "the oldest leaf is searched for among all",
        "eviction_does_not_grow_with_the_cache",
        "prefix.trie",
        "return next(iter(self._idle), None)",
        "return min(self._idle, key=lambda node: node.stamp, default=None)",
    ),
    Planted(
        "each new block is compared with those before it",
        "cost_is_linear_in_the_request",
        "core.block_pool",
        "        taken.reverse()\n",
        "        taken.reverse()\n"
        "        assert all(a != b for i, a in enumerate(taken) for b in taken[:i])\n",
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


def test_lines_are_counted_and_the_tracer_is_left_as_it_was():
    def work(times):
        total = 0
        for index in range(times):
            total += index
        return total

    (ten, few), (_, many) = (lines_of(lambda n=times: work(n)) for times in (5, 50))
    assert ten == 10
    assert many - few == 2 * 45
