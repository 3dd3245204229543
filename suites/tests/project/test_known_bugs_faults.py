"""Known bugs, planted into the reference: the property that the table names finds each alone."""

from __future__ import annotations

import pytest

from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.suites.faults.catalogue import Fault, find
from kvproof.suites.framework import state_machine
from kvproof.suites.framework.explore import Exploration
from kvproof.suites.framework.property import Level
from kvproof.suites.framework.rooms import rooms
from kvproof.suites.runner.levels import catalogue
from kvproof.suites.tests.framework import planted
from kvproof.suites.tests.framework.suite_faults import UNSHRUNK, fallen, home
from kvproof.suites.tests.framework.suite_kit import explore_target

NAMES = (
    "namespace_untagged",
    "window_blocks_leave_early",
    "window_blocks_never_leave",
    "draft_drop_forgotten",
    "drop_applied_again",
    "state_of_another_draft",
    "state_saved_off_the_border",
    "ratio_of_first_group",
    "one_pass_of_the_clamp",
    "chunk_limit_of_all_turns",
    "reservation_outlives_request",
    "old_checkpoint_goes_first",
    "second_row_taken",
    "hit_tokens_are_charged",
    "chunks_do_not_count_as_work",
    "last_come_first_served",
    "null_block_is_room",
    "rows_at_the_shelf_start",
)
"""Faults that their property finds alone within these budgets; `kvproof faults` runs them all."""
CORE = ("namespace_untagged",)
"""What one group of full attention shows is sooner found there."""


def explore(fault: Fault, seed: int | None) -> Exploration:
    planted.plant(fault.name, planted.Fault(fault.module, fault.old, fault.new))
    properties = {prop.name for prop in catalogue("full")[fault.suite]}
    others = properties - {fault.property}
    if fault.suite == "cache":
        make = planted.load(fault.name, "harness.adapters.reference.target").make_target
        handle = InProcessHandle(f"reference with {fault.name}", make)
        level: Level = "core" if fault.name in CORE else "full"
        return explore_target(handle, UNSHRUNK, level=level, seed=seed, tolerate=others)
    part = planted.load(fault.name, home(fault.suite)).SUITE
    return state_machine.explore(part, UNSHRUNK, seed=seed, tolerate=others)


@pytest.mark.parametrize("name", NAMES)
def test_the_table_names_the_property_that_has_to_find_it(name):
    bugs = {bug.name: bug for room in rooms() for bug in room.bugs}
    fault = find(name)
    assert any(fault.property in bugs[bug].caught_by for bug in fault.bugs)


@pytest.mark.slow(reason="finds planted faults by exploration")
@pytest.mark.parametrize("name", NAMES)
def test_the_planted_bug_falls_to_its_property(name):
    fault = find(name)
    seen = fallen(lambda seed: explore(fault, seed))
    assert seen.violation is not None, f"{name} survived {seen.test_cases} histories: {seen.died}"
    assert seen.violation.property == fault.property
