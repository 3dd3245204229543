"""Bugs planted in the planner, each of a kind that engines had, and the property it falls to."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from kvproof.harness.oracle.violation import Violation
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.reference.planner.machine import PlannerMachine
from kvproof.suites.reference.planner.strategies import SUITE
from kvproof.suites.tests.fast_share import one_in
from kvproof.suites.tests.framework.suite_faults import Planted, broken, catalogued

FAULTS = (
    *catalogued("plan"),
    Planted(
        "the null block is counted as room (vLLM #47272)",
        "the_returned_length_fits_and_one_more_does_not",
        "planner.plan",
        "return self.num_blocks - 1",
        "return self.num_blocks",
    ),
    Planted(
        "tokens in flight behind a window are forgotten",
        "requests_hold_the_blocks_planned",
        "planner.plan",
        "    seen = size - 1 + in_flight\n",
        "    seen = size\n",
    ),
    Planted(
        "a chunk is taken to begin at a border of blocks",
        "requests_hold_the_blocks_planned",
        "planner.plan",
        "borders = range(0, min(length, lcm(size, unit)), size)",
        "borders = range(1)",
    ),
    Planted(
        "the memory needed counts the null block twice",
        "too_little_memory_names_what_fits",
        "planner.planner",
        "blocks = max(trial.blocks + 1, settings.num_blocks)",
        "blocks = max(trial.blocks + 2, settings.num_blocks)",
    ),
    Planted(
        "a window's own token is needed twice",
        "every_byte_is_accounted_for",
        "planner.capacity",
        "planned.size - 1 + plan.settings",
        "planned.size + plan.settings",
    ),
    Planted(
        "kernel blocks are counted in blocks",
        "live_owners_never_alias",
        "planner.layer_views",
        "kernel_block = block * config.kernel_ratio + ",
        "kernel_block = block + ",
    ),
    Planted(
        "a part of a state runs over the end of its block",
        "states_fill_their_blocks",
        "planner.layer_views",
        "end = min(stop, (start // row + 1) * row)",
        "end = stop",
    ),
)

CROWDED_OUT = Planted(
    "splits that no memory helps crowd out those that it helps",
    "too_little_memory_names_what_fits",
    "planner.search",
    "return Cost(2, blocks)",
    "return Cost(1, row * (blocks + 1))",
)
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


class History(NamedTuple):
    config: Config
    questions: list[tuple[str, dict[str, Any]]]


@functools.cache
def histories() -> list[History]:
    """What the part does at its smallest budget, cut into pieces of one plan each."""
    found: list[History] = []

    class Noted(PlannerMachine):
        def __init__(self, config: Config, coverage: Coverage) -> None:
            found.append(History(config, []))
            super().__init__(config, coverage)

        def apply(self, verb: str, **arguments: Any) -> object:
            if verb == "plan":
                found.append(History(arguments["config"], []))
            else:
                found[-1].questions.append((verb, arguments))
            return super().apply(verb, **arguments)

    seen = explore(SUITE._replace(machine=Noted), BUDGETS["pr"])
    assert seen.violation is None
    assert seen.died is None
    return found


def fallen(part: Any) -> Iterator[str]:
    for config, questions in histories():
        coverage = Coverage(part.properties)
        try:
            machine = part.machine(config, coverage)
            for verb, arguments in questions:
                machine.apply(verb, **arguments)
        except Violation as violation:
            yield violation.property


@pytest.mark.slow(reason="explores until every situation occurs")
def test_every_situation_occurs() -> None:
    seen: Counter[str] = Counter()
    for config, questions in histories():
        coverage = Coverage(SUITE.properties)
        machine = PlannerMachine(config, coverage)
        for verb, arguments in questions:
            machine.apply(verb, **arguments)
        seen += coverage.situations
    wanted = {name for prop in SUITE.properties for name in prop.situations}
    assert wanted <= set(seen)


RARE = ("first_worker_decides",)
"""20 s of CPU time until it is found."""


@pytest.mark.parametrize(
    "fault",
    one_in(4, FAULTS, reason="finds planted faults by exploration", but=RARE),
    ids=lambda fault: fault.story,
)
def test_each_fault_falls_to_its_property(fault: Planted) -> None:
    others: Counter[str] = Counter()
    for prop in fallen(broken(SUITE, FAULTS.index(fault), fault)):
        if prop == fault.property:
            return
        others[prop] += 1
    pytest.fail(f"fell to {dict(others)}")


def test_a_fixed_number_of_blocks_names_the_least_memory() -> None:
    coverage = Coverage(SUITE.properties)
    SUITE.machine(FIXED_BLOCKS, coverage)
    assert coverage.checks[CROWDED_OUT.property]
    copy = broken(SUITE, len(FAULTS), CROWDED_OUT)
    with pytest.raises(Violation, match="a byte less does too") as caught:
        copy.machine(FIXED_BLOCKS, Coverage(copy.properties))
    assert caught.value.property == CROWDED_OUT.property


def test_every_property_notices_some_fault() -> None:
    assert {fault.property for fault in FAULTS} == {prop.name for prop in SUITE.properties}
