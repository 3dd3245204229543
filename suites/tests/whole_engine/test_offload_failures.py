"""Known failures of offloads and failed loads: each predicate knows its own and nothing near."""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.harness.contract.whole_engine import EngineConfig
from kvproof.harness.oracle.violation import Violation
from kvproof.suites.engines.vllm.mechanisms import loop as known
from kvproof.suites.framework.failed import Failed
from kvproof.suites.tests.whole_engine.toy_engine import driver

READ = "r4 reads position 9 of 15 in block 9 of group 1 (l): it holds position 1 of r7; 3 of 6"
RAISED = (
    "the engine raised KeyError: 29 in vllm/distributed/kv_transfer/kv_connector/v1/offloading/"
    "scheduler.py:_remove_pending_job"
)
REUSED = (
    "blocks [51, 52] were written by a launch while transfer 10, submitted before it, "
    "still read them"
)
STORES = {"stored_when_given_up": [29, 51, 52], "loaded_from_given_up": {"9": 20}}


def failed(sentence: str, *calls: tuple[str, dict[str, Any]], **facts: object) -> Failed:
    config = {"engine": {"connector": "failing_async_recompute"}}
    return Failed(Violation("p", "o", sentence, facts=facts), config, calls)


@pytest.mark.parametrize(
    ("sentence", "facts", "expected"),
    [
        (READ, {"block": 9, "written_by": 20}, True),
        (READ, {"block": 9, "written_by": 21}, False),
        (READ, {"block": 8, "written_by": 20}, False),
        (RAISED, {}, True),
        (RAISED.replace("29", "30"), {}, False),
        (REUSED, {}, True),
        (REUSED.replace("52", "53"), {}, False),
    ],
)
def test_stores_of_blocks_given_up(sentence: str, facts: dict[str, int], *, expected: bool) -> None:
    found = failed(sentence, ("reset", {}), ("drain", {}), **STORES, **facts)
    assert known.reset_stores_blocks_given_up(found) == expected
    without = failed(sentence, ("drain", {}), **STORES, **facts)
    assert not known.reset_stores_blocks_given_up(without)


STILL = "after 80 more steps, 80 of them without progress, {'r1': 'waiting', 'r2': 'preempted'} has"


@pytest.mark.parametrize(
    ("sentence", "holder", "lost", "expected"),
    [
        (STILL, ["r1", 0, False, 12], ["r1"], True),
        (STILL, ["r1", 0, False, 0], ["r1"], False),
        (STILL, ["r1", 3, False, 12], ["r1"], False),
        (STILL, ["r1", 0, False, 12], ["r2"], False),
        (STILL.replace("preempted", "running"), ["r1", 0, False, 12], ["r1"], False),
    ],
)
def test_a_failed_load_waits_for_itself(
    sentence: str, holder: list[object], lost: list[str], *, expected: bool
) -> None:
    found = failed(sentence, ("step", {"lose": 2}), holders=[holder], failed=lost)
    assert known.failed_load_waits_for_itself(found) == expected


COLUMNS = (
    "r5 keeps states in blocks [{}] of group 6, at places [3, 4, 5] of its table, "
    "the manager holds [{}] there"
)


@pytest.mark.parametrize(
    ("table", "held", "drafts", "expected"),
    [
        ("7, 8, 7", "0, 8, 7", 4, True),
        ("7, 8, 7", "0, 8, 7", 3, False),
        ("7, 8, 9", "0, 8, 9", 4, False),
        ("7, 8, 7", "5, 8, 7", 4, False),
    ],
)
def test_a_scratch_block_in_two_columns(
    table: str, held: str, drafts: int, *, expected: bool
) -> None:
    engine = {"asynchronous": True, "block_size": 4, "drafts": {"count": drafts}}
    sentence = COLUMNS.format(table, held)
    found = Failed(Violation("p", "o", sentence), {"engine": engine}, ())
    assert known.scratch_block_is_in_two_columns(found) == expected


@pytest.mark.parametrize(
    ("copied", "drafts", "expected"),
    [
        ({"r6": [16]}, 4, True),
        ({"r6": [12]}, 4, False),
        ({"r5": [16]}, 4, False),
        ({"r6": [16]}, 3, False),
    ],
)
def test_a_border_s_state_is_copied_over_the_running_one(
    copied: dict[str, list[int]], drafts: int, *, expected: bool
) -> None:
    engine = {"asynchronous": False, "block_size": 4, "drafts": {"count": drafts}}
    sentence = (
        "r6 goes on from the state of 17 tokens in block 7 of group 1: it is one of 16 tokens"
    )
    violation = Violation("p", "o", sentence, facts={"states_in_two_columns": copied})
    found = Failed(violation, {"engine": engine}, ())
    assert known.scratch_block_is_in_two_columns(found) == expected


def test_a_history_goes_on_without_the_requests_that_a_known_failure_struck() -> None:
    made = driver(EngineConfig(blocks=20, block_size=4))
    for name in ("r0", "r1", "r2"):
        made.apply("submit", {"id": name, "own": 3, "answers": 9})
    made.apply("step", {"count": 1, "lag": 2})
    made.findings.check("reads", False, str, facts={"request": "r0"})  # noqa: FBT003 - a condition
    assert made.apply("drain", {}) == ""  # nothing is done in between
    made.go_on()
    assert sorted(made.live) == ["r1", "r2"]
    assert made.device.requests["r0"].struck
    assert made.apply("drain", {}).endswith("steps")
    assert made.findings.wrong is None
    assert made.findings.context["struck"] == ["r0"]


def test_a_second_request_that_is_wrong_in_a_step_is_judged_after_the_first() -> None:
    made = driver(EngineConfig(blocks=20, block_size=4))
    for name in ("r0", "r1"):
        made.apply("submit", {"id": name, "own": 3, "answers": 9})
    for name in ("r0", "r0", "r1"):
        made.findings.check("reads", False, f"of {name}".format, facts={"request": name})  # noqa: FBT003 - a condition
    made.go_on()
    assert made.findings.wrong is not None
    assert made.findings.wrong.sentence == "of r1"
    made.go_on()
    assert made.findings.wrong is None
    assert not made.live


ASSERTS = (
    "the engine raised AssertionError:  in vllm/distributed/kv_transfer/kv_connector/v1/offloading/"
    "scheduler.py:reset_cache"
)


@pytest.mark.parametrize(
    ("sentence", "again", "expected"),
    [
        (ASSERTS, True, True),
        (ASSERTS, False, False),
        (ASSERTS.replace(":reset_cache", ":build_connector_meta"), True, False),
    ],
)
def test_a_second_reset(sentence: str, *, again: bool, expected: bool) -> None:
    calls = (("reset", {}), ("reset", {}))
    assert known.second_reset_asserts(failed(sentence, *calls, reset_again=again)) == expected
    elsewhere = failed(sentence, *calls, ("step", {}), reset_again=again)
    assert not known.second_reset_asserts(elsewhere)


def test_a_reset_counts_as_the_second_one_until_the_next_step() -> None:
    made = driver(EngineConfig(blocks=20, block_size=4))
    made.apply("submit", {"id": "r0", "own": 3, "answers": 9})
    seen = []
    for verb in ("reset", "reset", "step", "reset"):
        made.apply(verb, {})
        seen.append(made.findings.context.get("reset_again"))
    assert seen == [False, True, True, False]


@pytest.mark.parametrize(
    ("connector", "verb", "others", "expected"),
    [
        ("simple", "reset", True, True),
        ("multi", "reset", True, True),
        ("offload", "reset", True, False),  # its own event names no cleared index
        ("", "reset", True, False),
        ("simple", "step", True, False),
        ("simple", "reset", False, False),
    ],
)
def test_a_cleared_event_of_another_tier(
    connector: str, verb: str, *, others: bool, expected: bool
) -> None:
    violation = Violation("p", "o", "s", facts={"without_other_clears": others})
    found = Failed(violation, {"engine": {"connector": connector}}, [(verb, {}), ("step", {})])
    assert known.cleared_event_names_no_tier(found) == expected
