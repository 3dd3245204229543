"""Known failures of two engines: each predicate knows its own and nothing near it."""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.harness.oracle.violation import Violation
from kvproof.suites.engines.vllm.mechanisms import loop as known
from kvproof.suites.framework.failed import Failed

LOST = {"r0": "a message is lost"}
WAITS = "after 80 more steps, 80 of them without progress, {'r0': 'waiting_for_remote_kvs'} has"
STARVED = (
    "after 3000 more steps, 0 of them without progress, "
    "{'r1': 'running', 'r0': 'waiting_for_remote_kvs'} has not ended"
)
KEPT = (
    "13 of 13 blocks can be handed out and {'recving metadata of the connector': 2} is left, with"
)
RAISED = (
    "the engine raised AssertionError: Local block size 16 is not divisible by remote block size "
    "32 or vice versa. in vllm/distributed/kv_transfer/kv_connector/utils.py:block_size_ratio"
)
NULL = "r0 reads position 31 of 51 in block 0 of group 1 (model.layers.1.self_attn): nothing"
OTHER = "r1 reads position 16 of 35 in block 2 of group 0 (l): the block came from another engine; "


def failed(
    sentence: str, connector: str = "nixl_push_both_fail", verb: str = "abort", **facts: object
) -> Failed:
    engine: dict[str, Any] = {
        "connector": connector,
        "block_size": 16,
        "groups": [{}, {"kind": "window", "size": 20}],
        "peer": {"block_size": 8},
    }
    violation = Violation("p", "o", sentence, facts=facts)
    return Failed(violation, {"engine": engine}, [("submit", {}), (verb, {})])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (failed(WAITS, broken=LOST), True),
        (failed(WAITS), False),
        (failed(WAITS, broken={"r1": "a message is lost"}), False),
        (failed(WAITS, broken=LOST, arrived={"r1": 7}), True),
        (failed(WAITS, broken=LOST, arrived={"r0": 7}), False),
        (failed(WAITS.replace("}", ", 'r1': 'waiting'}"), broken=LOST), True),
        (failed(WAITS.replace("}", ", 'r1': 'running'}"), broken=LOST), False),
        (failed(STARVED, broken=LOST), True),
        (failed(STARVED, broken={}), False),
        (failed(WAITS, "nixl_pull_both_fail", broken=LOST), False),
        (failed(WAITS.replace("_for_remote_kvs", ""), broken=LOST), False),
    ],
)
def test_a_push_that_does_not_come(found: Failed, *, expected: bool) -> None:
    assert known.pushed_blocks_never_come(found) == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (failed(KEPT), True),
        (failed(KEPT, verb="step"), False),
        (failed(KEPT, "nixl_pull_both_fail"), False),
        (failed(KEPT.replace("13 of 13", "12 of 13")), False),
        (failed(KEPT.replace("{", "{'references': 1, ")), False),
    ],
)
def test_an_aborted_push(found: Failed, *, expected: bool) -> None:
    assert known.aborted_push_is_remembered(found) == expected


def test_a_push_into_smaller_blocks() -> None:
    assert known.push_into_smaller_blocks_ends_the_engine(failed(RAISED))
    swapped = RAISED.replace("16", "_").replace("32", "16").replace("_", "32")
    assert not known.push_into_smaller_blocks_ends_the_engine(failed(swapped))
    assert not known.push_into_smaller_blocks_ends_the_engine(failed(RAISED, "nixl_pull_both_fail"))


def test_a_window_that_is_one_short() -> None:
    assert known.window_of_a_loaded_prompt_is_one_short(failed(NULL))
    for near in ("position 30 of 50", "position 31 of 52", "position 47 of 51"):
        other = NULL.replace("position 31 of 51", near)
        assert not known.window_of_a_loaded_prompt_is_one_short(failed(other))
    assert not known.window_of_a_loaded_prompt_is_one_short(failed(NULL, "offload"))


def test_unequal_blocks() -> None:
    def shifted(position: int, block: int = 2, load: tuple[int, int] = (35, 2)) -> Failed:
        sentence = OTHER + f"it holds position {position} of r0; 18 of 35"
        return failed(sentence, loaded_for={str(block): load})

    own = shifted(8)
    assert known.unequal_blocks_shift_a_hit(own)
    for position in (16, 24, 4, 0):
        assert not known.unequal_blocks_shift_a_hit(shifted(position))
    assert not known.unequal_blocks_shift_a_hit(shifted(8, block=3))
    assert not known.unequal_blocks_shift_a_hit(shifted(8, load=(41, 2)))  # nothing is lacking
    assert not known.unequal_blocks_shift_a_hit(shifted(8, load=(35, 3)))  # there was no hit
    own.config["engine"]["peer"]["block_size"] = 16
    assert not known.unequal_blocks_shift_a_hit(own)
    assert not known.unequal_blocks_shift_a_hit(failed(OTHER + "its load had failed"))


@pytest.mark.parametrize(
    ("stored", "connector", "expected"),
    [
        ([9] * 33, "simple_lazy", True),
        ([9] * 32, "simple_lazy", False),
        ([1] * 33, "simple_lazy", False),
        ([9] * 33, "simple", False),
    ],
)
def test_an_engine_that_stores_for_ever(
    stored: list[int], connector: str, *, expected: bool
) -> None:
    sentence = "after 3000 more steps, 0 of them without progress, the engine has not ended"
    found = failed(sentence, connector, "drain", stored_since_a_launch=stored, tier_blocks=32)
    assert known.idle_engine_stores_for_ever(found) == expected


@pytest.mark.parametrize(
    ("late", "loads", "expected"),
    [
        ({"r1": 9}, {"2": "r1"}, True),
        ({"r4": 9}, {"2": "r4"}, True),  # r1 hits what r4 has read
        ({"r4": 9}, {"2": "r1"}, False),  # another request was late
        ({"r1": 9}, {"3": "r1"}, False),
        ({}, {"2": "r1"}, False),
    ],
)
def test_a_read_after_the_lease(
    late: dict[str, int], loads: dict[str, str], *, expected: bool
) -> None:
    found = failed(OTHER, read_after_its_lease=late, loaded_by=loads)
    assert known.blocks_are_read_after_their_lease(found) == expected


@pytest.mark.parametrize(
    ("raised", "twice", "expected"),
    [
        ("KeyError: 3 in v1/offloading/scheduler.py:_update_connector_output", True, True),
        ("KeyError: 3 in v1/offloading/scheduler.py:_update_connector_output", False, False),
        (
            "AssertionError:  in v1/core/sched/scheduler.py:_update_from_kv_xfer_finished",
            True,
            True,
        ),
        ("KeyError: 'r0' in v1/nixl/pull_worker.py:_get_new_notifs", True, False),
    ],
)
def test_a_completion_that_is_reported_twice(raised: str, *, twice: bool, expected: bool) -> None:
    violation = Violation("p", "o", f"the engine raised {raised}")
    found = Failed(violation, {"engine": {}}, [("step", {"twice": twice}), ("drain", {})])
    assert known.completion_reported_twice_raises(found) == expected


def repeated(sentence: str, *, own: int = 2, other: int = 1, mode: str = "pull") -> Failed:
    found = failed(
        sentence, f"nixl_{mode}_both_fail", repeated={"r0": 7}, loaded_by={"2": "r0", "3": "r1"}
    )
    engine = found.config["engine"]
    engine["tensor_parallel"], engine["peer"]["tensor_parallel"] = own, other
    return found


READ = "r1 reads position 16 of 35 in block {} of group 0 (l): the block came from another engine"
HELD = "blocks [5] of {} are read by the other engine, and the engine that computed them holds"
COUNT = "9 of {} blocks can be handed out and {{'consumer notification counts by req of the"
COUNT += " connector': 1}} is left, with no request"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (repeated(HELD.format("r0")), True),
        (repeated(HELD.format("r1")), False),
        (repeated(HELD.format("r0"), own=1), False),
        (repeated(HELD.format("r0"), mode="push"), False),
        (repeated(READ.format(2)), True),
        (repeated(READ.format(3)), False),
        (repeated(READ.format(2), mode="push", own=1, other=4), True),
        (repeated(COUNT.format(9)), True),
        (repeated(COUNT.format(8)), False),
        (failed(READ.format(2)), False),
    ],
)
def test_a_message_that_counts_for_another_worker(found: Failed, *, expected: bool) -> None:
    assert known.repeated_message_counts_for_another_worker(found) == expected
