"""States with drafts: where a launch reads one, and where it leaves one for each draft."""

from __future__ import annotations

import numpy as np
import pytest

from kvproof.harness.contract.whole_engine import EngineRequest, GroupKind, Reads, Row
from kvproof.harness.model.chain import Chain
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.memory import DeviceMemory, Layer, Pool
from kvproof.suites.engines.vllm.mechanisms import loop as known
from kvproof.suites.framework.failed import Failed, MissingFact

KIND = GroupKind("state", layers=1)
PROMPT = tuple(range(10, 16))
STATES = "states_are_of_exactly_the_tokens_read"
TABLES = "kernel_tables_address_their_blocks"


def device() -> ShadowDevice:
    pool = Pool(KIND, 4, 4, [Layer("0", np.zeros((8, 2), np.uint64))], zeroed=False)
    made = ShadowDevice(DeviceMemory([pool], 8), Findings(), most_drafts=2)
    made.register(EngineRequest("r", PROMPT, answers=9, accepts=(1,)), Chain(PROMPT, [KIND]))
    return made


def row(start: int, tokens: tuple[int, ...], drafts: int, state: int, owned: list[int]) -> Row:
    reads = Reads(np.array([0, 1, 2, 3]), np.empty(0, np.int64), owned, state, range(1, 2 + drafts))
    return Row(
        request="r",
        start=start,
        tokens=tokens,
        drafts=drafts,
        samples=True,
        fresh=not start,
        device_start=False,
        adapter=("", 0),
        media=(),
        groups=(reads,),
    )


@pytest.mark.parametrize(
    ("state", "owned", "wrong"),
    [
        (2, [0, 1, 2, 3], ""),  # one draft was accepted: its state is one place further on
        (1, [0, 1, 2, 3], STATES),
        (3, [0, 1, 2, 3], STATES),
        (2, [0, 1, 7, 3], TABLES),
        (2, [0, 1, 2], TABLES),
        (2, [9, 1, 2, 3], ""),  # no state of this launch is there
    ],
)
def test_the_next_launch_reads_the_state_behind_the_accepted_drafts(state, owned, wrong):
    made = device()
    made.launch([row(0, PROMPT, 0, 0, [0, 1, 2, 3])])
    chain = made.requests["r"].chain
    first = (chain.tokens[6], *made.drafts("r"))
    assert len(made.answers(made.launch([row(6, first, 2, 1, [0, 1, 2, 3])]))[0]) == 2
    assert made.findings.wrong is None
    made.launch([row(8, (chain.tokens[8], *made.drafts("r")), 2, state, owned)])
    assert (made.findings.wrong.property if made.findings.wrong else "") == wrong


def test_a_state_is_copied_with_its_length():
    memory = device().memory
    memory.write_state(0, 1, 42, length=6, epoch=0, launch=1)
    memory.copy_state(0, 1, 3, launch=2)
    assert memory.read_state(memory.pools[0].layers[0], 3, 0) == (42, 6)
    assert memory.of(0).written[3] == 2


SENTENCE = (
    "r1 goes on from the state of 10 tokens in block 29 of group 2: it is one of 8 tokens, it"
)


def failed(*, asynchronous: bool = True, **facts: object) -> Failed:
    config = {"engine": {"asynchronous": asynchronous}}
    return Failed(Violation(STATES, "o", SENTENCE, facts=facts), config, [("step", {})])


@pytest.mark.parametrize(("lost", "expected"), [({"r1": 2}, True), ({"r1": 1}, False), ({}, False)])
def test_a_request_that_was_left_out(lost, expected):
    assert known.left_out_request_loses_its_state(failed(forgotten_drafts=lost)) == expected


@pytest.mark.parametrize(
    ("taken", "asynchronous", "expected"),
    [({"r1": -2}, True, True), ({"r1": -2}, False, False), ({"r1": 2}, True, False),
     ({"r2": -2}, True, False)],
)  # fmt: skip
def test_a_row_that_moved_up(taken, asynchronous, expected):
    found = failed(asynchronous=asynchronous, drafts_of_another_row=taken)
    assert known.row_takes_the_count_of_another(found) == expected


def test_without_its_fact_a_failure_is_another_one():
    for predicate in (known.left_out_request_loses_its_state, known.row_takes_the_count_of_another):
        with pytest.raises(MissingFact):
            predicate(failed())


READ = (
    "r10 reads position 60 of 97 in block 4 of group 0 (layer): it was computed with other weights"
)


@pytest.mark.parametrize(
    ("blocks", "policy", "expected"),
    [
        ([[0, 4, 3, 7]], "priority", True),
        ([[1, 4, 3, 7]], "priority", False),
        ([[0, 4, 2, 7]], "priority", False),  # it is read at another place
        ([[0, 4, 3, 6]], "priority", False),  # a launch has written it since
        ([[0, 4, 3, 6], [0, 4, 3, 8]], "priority", True),
        ([[0, 4, 3, 7]], "fcfs", False),
    ],
)
def test_a_request_preempted_in_its_own_step(blocks, policy, expected):
    violation = Violation("p", "o", READ, facts={"uncomputed_blocks": blocks, "written_by": 7})
    config = {"engine": {"policy": policy, "block_size": 16}}
    found = Failed(violation, config, [("step", {})])
    assert known.preempted_in_its_own_step_stays_cached(found) == expected
