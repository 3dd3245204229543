"""The suite `prefixes` on a plain server, and the faults that are planted into that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

from kvproof.harness.contract.target import TargetConfig
from kvproof.harness.isolation.registry import open_handle
from kvproof.suites.faults.catalogue import find, of_suite
from kvproof.suites.framework.component_suite import ComponentSuite
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.reference.stored_prefixes import plain_server as prefixes_plain
from kvproof.suites.reference.stored_prefixes.properties import PROPERTIES
from kvproof.suites.reference.stored_prefixes.strategies import FULL, offered
from kvproof.suites.runner.levels import suites
from kvproof.suites.tests.agreement.agreement_kit import component_agrees
from kvproof.suites.tests.framework.planted import load, plant
from kvproof.suites.tests.framework.suite_faults import UNSHRUNK, fallen

SPEC = "kvproof.suites.reference.stored_prefixes.plain_server:make_target"
FAULTS = [fault.name for fault in of_suite("prefixes")]
WITHOUT = {
    "a prefix is found though a window's early chunks are not there",
    "a window has left all of a chunk that is stored",
    "a window has left a part of a chunk that is stored",
    "a retrieve has null blocks where a window no longer looks",
}
"""Situations of windows."""


def part_on(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> ComponentSuite:
    return offered(lambda *calls: answer({"calls": calls})["answers"]).suite


def test_the_plain_server_is_right_and_brings_about_all_but_windows():
    part = part_on(prefixes_plain.answer)
    seen = explore(part, settings(UNSHRUNK, max_examples=60))
    assert (seen.violation, seen.died) == (None, None)
    met = {situation for prop in PROPERTIES for situation in prop.situations} - {*seen.situations}
    assert met == WITHOUT
    assert seen.checks["dtypes_are_part_of_the_key"], "judged, though nothing is found"
    assert FULL == ((-1,), (-1, -1))


def test_as_a_target_it_is_judged_by_what_does_not_need_windows():
    with open_handle(SPEC) as handle:
        judged = {suite.name: suite.judged for suite in suites(handle, "full") if suite.judged}
    assert [*judged] == ["prefixes"]
    assert len(judged["prefixes"]) == len(PROPERTIES) - 2


def test_it_hands_out_no_blocks():
    target = prefixes_plain.make_target(TargetConfig(num_blocks=3, block_size=4))
    with pytest.raises(Exception, match="hands out no blocks"):
        target.reset()
    assert not target.inspect().holders
    target.close()


@pytest.mark.slow(reason="finds planted faults by exploration")
@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_falls_to_its_property_alone(name, tmp_path):
    fault = find(name)
    assert fault.target == SPEC
    plant(name, fault)
    part = part_on(load(name, fault.module).answer)
    part = part._replace(
        profiles=part.profiles[2:]
    )  # calls that must be refused, and another engine
    others = {prop.name for prop in PROPERTIES} - {fault.property}
    seen = fallen(lambda seed: explore(part, UNSHRUNK, seed=seed, tolerate=others))
    assert seen.violation is not None, seen.tolerated
    assert seen.violation.property == fault.property
    component_agrees(seen.counterexample, tmp_path, part_on(prefixes_plain.answer))
