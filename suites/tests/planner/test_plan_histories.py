"""A configuration that fuzzing drew for the suite `plan`."""

from __future__ import annotations

import pytest

from kvproof.harness.oracle.violation import Violation
from kvproof.suites.faults.catalogue import find
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.planner.strategies import SUITE
from kvproof.suites.tests.framework.suite_faults import broken

FIXED_BLOCKS: Config = {
    "shapes": [
        {"kind": "state", "size": 0, "parts": [64]},
        {"kind": "full", "size": 0, "parts": [16, 132]},
        {"kind": "chunk", "size": 1, "parts": [16]},
    ],
    "layers": [0, 0, 1, 1, 0, 0, 0, 2, 1, 0],
    "readers": 0,
    "settings": {
        "memory": [10_000],
        "max_len": 130,
        "block_size": 6,
        "kernel_block_size": 2,
        "num_blocks": 50,
        "max_batch_tokens": 70,
        "drafts": 0,
        "max_unit": 24,
        "hybrid_groups": True,
        "state_pool": "shared",
        "max_requests": 1,
        "prefix_cache_state_budget": 0,
    },
}
"""Found by fuzzing: small rows would take more than 50 blocks, whatever the memory."""


def test_a_fixed_number_of_blocks_names_the_least_memory() -> None:
    fault = find("splits_that_no_memory_helps_crowd_out")
    coverage = Coverage(SUITE.properties)
    SUITE.machine(FIXED_BLOCKS, coverage)
    assert coverage.checks[fault.property]
    copy = broken(SUITE, fault)
    with pytest.raises(Violation, match="a byte less does too") as caught:
        copy.machine(FIXED_BLOCKS, Coverage(copy.properties))
    assert caught.value.property == fault.property
