"""Known failures of connectors that copy by themselves: each predicate knows its own alone."""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.harness.oracle.violation import Violation
from kvproof.suites.engines.vllm.mechanisms import loop_stores as known
from kvproof.suites.framework.failed import Failed

RAISED = "the engine raised "
FILE = RAISED + "FileNotFoundError: No such file: /a.safetensors in safetensors/torch.py:load_file"
COPY = RAISED + "IllegalAccess: a copy of [{}, 1, 8] into [{}, 1, 8] in stores/files.py:__setitem__"
START = RAISED + "IllegalAccess: r2 computes from position -16 on in batch.py:_row"
UNREAD = (
    RAISED + "AssertionError: Preempted request {} has num_computed_tokens {} but expected 80 "
    "(full_hit_adj=False) in lmcache/integration/vllm/vllm_v1_adapter.py:build_connector_meta"
)
READ = "r2 reads position 0 of 37 in block {} of group 0 (l): it was computed with other weights"
TABLES = "r7 reads and writes blocks {} in group 0, the manager holds {} there"


def failed(sentence: str, connector: str, *requests: dict[str, Any], **facts: object) -> Failed:
    config = {"engine": {"connector": connector, "block_size": 16}}
    calls = [("submit", each) for each in requests]
    return Failed(Violation("p", "o", sentence, facts=facts), config, [*calls, ("drain", {})])


@pytest.mark.parametrize(
    ("sentence", "connector", "length", "expected"),
    [
        (FILE, "example", 33, True),
        (FILE, "example", 34, False),
        (FILE, "lmcache", 33, False),
        (COPY.format(48, 96), "example", 101, True),
        (COPY.format(96, 48), "example", 101, False),
        (COPY.format(48, 90), "example", 101, False),
        (START, "example", 1, True),
        (START, "example", 2, False),
        (RAISED + "KeyError: 3 in example_connector.py:save", "example", 33, False),
    ],
)
def test_what_was_not_kept(sentence: str, connector: str, length: int, *, expected: bool) -> None:
    whole = {"id": "r1", "shared": length - 1, "own": 1}
    found = failed(sentence, connector, whole, prompts=[length])
    assert known.example_connector_loads_what_it_has_not_kept(found) == expected


@pytest.mark.parametrize("running", [True, False])
def test_a_request_that_goes_on_is_sought_under_its_answers(running: bool) -> None:  # noqa: FBT001 - a row
    found = failed(FILE, "example", {"id": "r1", "shared": 71, "own": 17}, prompts=[88])
    found = Failed(found.violation, found.config, [*found.calls, ("reset", {"running": running})])
    assert known.example_connector_loads_what_it_has_not_kept(found) is running


@pytest.mark.parametrize(("length", "expected"), [(33, True), (34, False)])
def test_a_later_turn_has_the_length_of_its_prompt(length: int, *, expected: bool) -> None:
    turn = {"id": "r2", "after": "r1", "own": 4}
    found = failed(FILE, "example", {"id": "r1", "shared": 20}, turn, prompts=[20, length])
    assert known.example_connector_loads_what_it_has_not_kept(found) == expected


@pytest.mark.parametrize(
    ("block", "written", "expected"), [(3, 7, True), (3, 8, False), (4, 7, False)]
)
def test_a_block_that_a_store_filled(block: int, written: int, *, expected: bool) -> None:
    facts = {"filled_by_a_store": {"3": 7}, "written_by": written}
    found = failed(READ.format(block), "example", **facts)
    assert known.store_serves_other_salts_and_weights(found) == expected


@pytest.mark.parametrize(
    ("table", "held", "expected"),
    [
        ([12, 15, 5, 5, 2, 2], [12, 15, 5, 2, 10, 9], True),
        ([1, 2, 3, 2, 3], [1, 2, 3, 4, 5], True),
        ([1, 2, 2, 4], [1, 2, 3, 4], False),
        ([9, 10, 11, 9], [9, 10, 11, 12], False),
        ([2, 1], [1, 2], False),
        ([1, 2, 4], [1, 2, 3], False),
    ],
)
def test_a_table_that_grows_twice(table: list[int], held: list[int], *, expected: bool) -> None:
    sentence = TABLES.format(table, held)
    assert known.lmcache_table_grows_twice(failed(sentence, "lmcache")) == expected
    assert not known.lmcache_table_grows_twice(failed(sentence, "example"))


@pytest.mark.parametrize(
    ("request_", "computed", "expected"), [("r1", 0, True), ("r2", 0, False), ("r1", 16, False)]
)
def test_an_unread_hit(request_: str, computed: int, *, expected: bool) -> None:
    requests = {"id": "r1", "reads_cache": False}, {"id": "r2"}
    found = failed(UNREAD.format(request_, computed), "lmcache", *requests)
    assert known.lmcache_unread_hit_ends_the_engine(found) == expected
