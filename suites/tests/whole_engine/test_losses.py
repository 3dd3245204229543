"""Loads that fail: who computes from them before the scheduler knows, and what follows."""

from __future__ import annotations

import numpy as np
import pytest

from kvproof.harness.contract.whole_engine import Reads, Row
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.whole_engine.failed_loads import Losses
from kvproof.suites.engines.vllm.mechanisms.loop import (
    answer_of_a_failed_load_is_taken,
    failed_load_runs_for_ever,
    failed_load_stays_cached,
)
from kvproof.suites.framework.failed import Failed


def row(name: str, start: int, blocks: list[int], length: int = 1) -> Row:
    table = np.array(blocks)
    reads = Reads(table, np.empty(0, np.int64), blocks)
    return Row(
        name,
        start,
        (7,) * length,
        drafts=0,
        samples=True,
        fresh=False,
        device_start=False,
        groups=(reads,),
    )


@pytest.mark.parametrize(
    ("pattern", "picked"), [(0, []), (1, [0]), (2, [4]), (3, [0, 2, 4]), (4, [0, 1, 2, 3, 4])]
)
def test_a_pattern_says_which_blocks_do_not_arrive(pattern, picked):
    assert Losses(16, pattern=pattern).pick(5) == picked
    assert Losses(16, pattern=pattern).pick(0) == []


def test_who_reads_a_lost_block_is_excused_until_the_failure_is_reported():
    losses = Losses(4)
    losses.lose("a", [2])
    rows, firsts = losses.look([row("a", 8, [1, 2, 3]), row("b", 4, [1, 5])])
    assert firsts == {"a": 4}
    assert [each.fresh for each in rows] == [False, False]
    losses.report([2])
    rows, firsts = losses.look([row("a", 4, [1, 2, 3]), row("b", 5, [1, 5])])
    assert firsts == {}
    assert [each.fresh for each in rows] == [True, False]  # it begins again further back
    assert losses.look([row("c", 8, [1, 2, 3])])[1] == {}  # has no excuse


def test_a_block_that_a_row_computes_itself_is_not_lost_any_more():
    losses = Losses(4)
    losses.lose("a", [2])
    assert losses.look([row("b", 4, [9, 2], length=4)])[1] == {}
    assert losses.look([row("c", 8, [9, 2, 3])])[1] == {}


STUCK = "after 93 more steps, 80 of them without progress, {'r0': 'running'} has not ended"
LOST = "r4 reads position 32 of 71 in block 3 of group 0 (layer): the block's load had failed; 16"


OWN = "my_package:MyConnector"
RECOMPUTE = {"kv_load_failure_policy": "recompute"}


@pytest.mark.parametrize(
    ("connector", "tier", "asynchronous", "within", "cached", "answered"),
    [
        ("failing_sync_recompute", {}, True, ["r5"], True, True),
        ("failing_sync_recompute", {}, False, ["r5"], True, False),
        ("failing_sync_recompute", {}, True, [], False, False),
        ("failing_sync_fail", {}, True, ["r5"], False, False),
        ("failing_async_recompute", {}, True, [], False, False),
        ("offload", {}, True, [], False, False),
        (OWN, RECOMPUTE, True, ["r5"], True, True),
        (OWN, RECOMPUTE, True, [], False, False),
        (OWN, {}, True, ["r5"], False, False),
    ],
)
def test_only_failed_loads_within_a_step_that_are_recomputed_are_known(
    connector, tier, asynchronous, within, cached, answered
):
    engine = {"connector": connector, "tier": tier, "asynchronous": asynchronous}
    config = {"engine": engine}
    calls = [("submit", {"id": "r0"}), ("step", {}), ("drain", {})]

    def failed(sentence: str, **facts: object) -> Failed:
        facts = {
            "behind_a_failed_load": {"r5": [3], "r4": [2]},
            "lost_in_a_step": within,
            **facts,
        }
        return Failed(Violation("p", "o", sentence, facts=facts), config, calls)

    assert failed_load_stays_cached(failed(LOST)) == cached
    assert not failed_load_stays_cached(failed(LOST.replace("the block's", "another")))
    own = {"r4": [3]}  # the request itself goes on from what did not arrive
    assert not failed_load_stays_cached(failed(LOST, behind_a_failed_load=own))
    taken = failed("r answers", load_failed=bool(within))
    assert answer_of_a_failed_load_is_taken(taken) == answered
    assert not answer_of_a_failed_load_is_taken(failed("r answers", load_failed=False))
    calls[0] = ("submit", {"id": "r0", "answers": 1})
    assert failed_load_runs_for_ever(failed(STUCK)) == answered
    assert not failed_load_runs_for_ever(failed(STUCK.replace("running", "waiting")))
    assert not failed_load_runs_for_ever(failed(STUCK.replace("}", ", 'r1': 'preempted'}")))
    calls[0] = ("submit", {"id": "r0", "answers": 2})
    assert not failed_load_runs_for_ever(failed(STUCK))
