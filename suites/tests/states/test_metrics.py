"""The suite `metrics` passes on the reference, and each property finds a fault of its kind."""

from __future__ import annotations

import logging

import pytest

from kvproof.suites.reference.metrics.log import captured
from kvproof.suites.reference.metrics.strategies import SUITE
from kvproof.suites.tests.framework.suite_faults import Planted, falls, sees_everything

FAULTS = (
    Planted(
        "a refusal is noted, not counted",
        "counters_count_what_happened",
        "observe.cache_metrics",
        "self.refused[answer.reason] += 1",
        "self.refused[answer.reason] = 1",
    ),
    Planted(
        "evictions of all groups count for the first",
        "counters_count_what_happened",
        "observe.cache_metrics",
        "self.evicted[group] += len(gone)",
        "self.evicted[0] += len(gone)",
    ),
    Planted(
        "a refused admission counts as a request",
        "counters_count_what_happened",
        "observe.cache_metrics",
        "        if isinstance(answer, Admission):\n            self.admitted += 1\n",
        "        self.admitted += 1\n        if isinstance(answer, Admission):\n",
    ),
    Planted(
        "a line about a restore has source and destination in the wrong order",
        "log_lines_name_request_and_blocks",
        "observe.cache_metrics",
        "*(ids.tolist() for ids in state.restore)",
        "*(ids.tolist() for ids in state.restore[::-1])",
    ),
    Planted(
        "a line about an eviction names the first block only",
        "log_lines_name_request_and_blocks",
        "observe.cache_metrics",
        'LOG.debug("evict group=%d blocks=%s", group, gone)',
        'LOG.debug("evict group=%d blocks=%s", group, gone[:1])',
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


def test_a_logger_is_left_as_it_was(caplog):
    logger = logging.getLogger("kvproof.reference")
    before = (logger.level, logger.propagate, list(logger.handlers))
    with captured(logger) as lines:
        logger.debug("evict %d", 3)
    logger.debug("nobody hears this")
    assert lines == ["evict 3"]
    assert (logger.level, logger.propagate, logger.handlers) == before
    assert caplog.records == []
