"""The suite `settings` passes on the reference, and each property finds a fault of its kind."""

from __future__ import annotations

import pytest

from kvproof.suites.reference.config.strategies import SUITE
from kvproof.suites.tests.framework.suite_faults import Planted, catalogued, falls, sees_everything

FAULTS = (
    *catalogued("settings"),
    Planted(
        "half of the legal choices are not offered",
        "kernel_block_sizes_divide_the_block_size",
        "core.validation",
        "sorted({*small, *(block_size // size for size in small)})",
        "sorted(small)",
    ),
    Planted(
        "a diffusion model is not known as one",
        "models_that_rewrite_tokens_are_refused",
        "planner.hf_config",
        '"dream", "sdar",',
        '"dream",',
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
