"""The suite `engine`: a right engine passes, and each fault of the toy is found by its property."""

from __future__ import annotations

from functools import partial

import pytest

from kvproof.harness.contract.whole_engine import EngineConfig, EngineRequest, GroupKind, Row, Span
from kvproof.harness.whole_engine.device_requests import DeviceRequest
from kvproof.harness.whole_engine.encoder_outputs import EncoderOutputs
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.requests import chain_of
from kvproof.suites.tests.agreement.agreement_kit import component_agrees
from kvproof.suites.tests.whole_engine.toy_engine import FAULTS, TRAITS, driver
from kvproof.suites.tests.whole_engine.toy_suite import answering, toy_provided, toy_suite
from kvproof.suites.whole_engine.properties import PROPERTIES
from kvproof.suites.whole_engine.search import cut_down, search
from kvproof.suites.whole_engine.strategies import LoopHistories


def test_a_right_engine_breaks_nothing_and_comes_into_every_situation_it_can():
    whole = toy_provided()
    seen = search(whole.suite, seed=1, histories=40, operations=40)
    assert seen.failure is None
    assert seen.died is None
    judged = [prop for prop in whole.suite.properties if prop.name not in whole.without]
    needed = {situation for prop in judged for situation in prop.situations}
    assert needed - set(seen.situations) == set()
    assert {name for name, count in seen.checks.items() if count} >= {p.name for p in judged}


def test_what_the_engine_has_not_is_unsupported_with_its_reason():
    whole = toy_provided()
    assert whole.without == {
        "states_are_of_exactly_the_tokens_read": "its loop is driven without states",
        "a_running_step_keeps_its_blocks": TRAITS.refuses["ahead"],
        "blocks_in_flight_are_not_reused": "its loop is driven without another tier",
        "received_blocks_hold_the_requests_own_content": "its loop is driven without two engines",
        "blocks_are_held_until_they_are_read": "its loop is driven without two engines",
        "a_copy_that_ends_twice_changes_nothing": (
            "its loop is driven without ends that are reported twice"
        ),
        "a_session_goes_on_from_what_it_holds": "its loop is driven without sessions",
    }
    assert whole.unsupported.keys() >= {"windows and chunks", "connector", "two engines", "embeds"}
    assert not whole.unsupported.keys() & LoopHistories(TRAITS).factors.levels.keys()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_engine_is_found_by_the_property_that_it_breaks(fault, tmp_path):
    found = search(toy_suite(fault), seed=1, histories=60, operations=40)
    assert found.failure is not None
    assert found.failure.violation.property == FAULTS[fault], str(found.failure.violation)
    component_agrees(found.failure, tmp_path, toy_suite())


UNABLE = {
    "states_are_of_exactly_the_tokens_read": "states",
    "a_running_step_keeps_its_blocks": "launches ahead",
    "blocks_in_flight_are_not_reused": "another tier",
    "received_blocks_hold_the_requests_own_content": "another engine",
    "blocks_are_held_until_they_are_read": "another engine",
    "a_copy_that_ends_twice_changes_nothing": "another tier",
    "a_session_goes_on_from_what_it_holds": "sessions: `test_engine_turns` has a toy with them",
}
"""Property -> the ability that the toy would need to break it: engines' planted bugs do."""


def test_every_property_has_a_fault_or_is_of_an_ability_that_the_toy_has_not():
    assert {*FAULTS.values(), *UNABLE} == {prop.name for prop in PROPERTIES}
    assert UNABLE.keys() == toy_provided().without.keys()


@pytest.mark.parametrize("prop", UNABLE)
def test_verdict_script_and_replay_agree_about_abilities_that_the_toy_has_not(prop, tmp_path):
    found = search(answering(prop, wrong=True), seed=1, histories=9, operations=40)
    assert found.failure is not None
    assert found.failure.violation.property == prop
    component_agrees(found.failure, tmp_path, answering(prop, wrong=False))


def test_a_failing_history_is_cut_down_to_what_it_needs():
    found = search(toy_suite("salt_ignored"), seed=3, histories=60, operations=40)
    assert found.failure is not None
    verbs = [
        each.verb for each in cut_down(toy_suite("salt_ignored"), found.failure).history.operations
    ]
    assert verbs.count("submit") <= 3, verbs  # the first operation always stays
    assert len(verbs) <= 5, verbs


def test_equal_seeds_give_equal_histories():
    first, second = (
        search(toy_suite("salt_ignored"), seed=3, histories=60, operations=40) for _ in range(2)
    )
    assert first.failure is not None
    assert str(first.failure.violation) == str(second.failure.violation)
    assert first.operations == second.operations


@pytest.mark.parametrize("wrong", [False, True])
def test_an_error_of_the_harness_behind_a_violation_follows_from_it(wrong):
    made = driver(EngineConfig(blocks=8, block_size=4))

    def step():
        made.findings.check("first", not wrong, lambda: "it is wrong")
        made.device.memory.copy_state(99, 0, 0, launch=1)

    made.engine.step, made.engine.idle = step, lambda: False
    if wrong:
        made.apply("step", {})
        assert made.findings.wrong.property == "first"
    else:
        with pytest.raises(IndexError):
            made.apply("step", {})


@pytest.mark.parametrize(
    ("handler", "repeated_in", "expected"),
    [
        ("take_ends", 3, "a_copy_that_ends_twice_changes_nothing"),
        ("take_ends", 2, "a_copy_that_ends_twice_changes_nothing"),
        ("take_ends", 1, "the_engine_keeps_running"),
        ("take_ends", None, "the_engine_keeps_running"),
        ("schedule", 3, "the_engine_keeps_running"),
    ],
)
def test_only_the_handling_of_a_repeated_end_is_charged_to_it(handler, repeated_in, expected):
    made = driver(EngineConfig(blocks=8, block_size=4))

    def take_ends():
        raise KeyError(3)

    def schedule():
        raise KeyError(3)

    def step():
        made.findings.repeats(happened=made.clock.tick == repeated_in)
        if made.clock.tick == 3:
            {"take_ends": take_ends, "schedule": schedule}[handler]()
        return []

    made.engine.step, made.engine.idle = step, lambda: False
    made.apply("step", {"count": 3})
    assert made.findings.wrong.property == expected


def test_an_encoder_output_that_is_freed_too_early_is_missed():
    findings = Findings()
    image = EngineRequest("r0", (5, 4, 4, 4, 6), media=(Span("image", 1, 3, "cat"),))
    requests = {"r0": DeviceRequest(image, chain_of(image, [GroupKind()]))}
    outputs = EncoderOutputs(findings, requests)
    row = partial(Row, "r0", drafts=0, samples=False, fresh=True, device_start=False)
    outputs.check(row(start=0, tokens=(5,)))
    outputs.step([], {"r0": [0]})
    outputs.check(row(start=1, tokens=(4, 4)))
    assert findings.wrong is None
    outputs.step(["cat"], {})
    outputs.check(row(start=4, tokens=(6,)))
    assert findings.wrong is None
    outputs.check(row(start=3, tokens=(4,)))
    assert findings.wrong is not None
    assert findings.wrong.property == "encoder_outputs_are_there_when_they_are_read"
