"""Shifted tables of LMDeploy: facts of the very blocks, and a predicate that knows no others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvproof.harness.adapters.lmdeploy_engine.matches import SHIFTED, Matches
from kvproof.harness.oracle.violation import Violation
from kvproof.suites.engines.lmdeploy import mechanisms
from kvproof.suites.framework.failed import Failed

SHIFT = {"request": "r1", "block": 6, "place": 5, "own": 3, "launch": 20}
OTHERS = {"reader": "r0", "position": 50, "held": 82, "launch": 22, "written_by": 21}
"""Another request reads the block at its own place after r1 has written there."""
ITSELF = {"reader": "r1", "position": 82, "held": 50, "launch": 20, "written_by": 4}
"""The request reads the block's own tokens one launch after the match."""


def known(read: dict[str, Any], *, block: int = 6, **changed: Any) -> bool:
    own = {**read, **changed}
    facts = {name: own[name] for name in ("launch", "written_by")}
    sentence = (
        f"{own['reader']} reads position {own['position']} of 90 in block {block} of group 0 (l): "
        f"it holds position {own['held']} of r4; 1 of 90 slots hold something else"
    )
    violation = Violation(
        "reads_return_own_content", "shadow memory", sentence, facts={**facts, SHIFTED: [SHIFT]}
    )
    return mechanisms.preempted_request_shifts_its_table(
        Failed(violation, {"engine": {"block_size": 16}}, [("drain", {})])
    )


@pytest.mark.parametrize(
    ("read", "changed", "expected"),
    [
        (OTHERS, {}, True),
        (OTHERS, {"block": 7}, False),
        (OTHERS, {"position": 51}, False),  # another slot of the block
        (OTHERS, {"position": 34, "held": 66}, False),  # as far, at another place
        (OTHERS, {"held": 66}, False),
        (OTHERS, {"written_by": 19}, False),  # before the block was shifted
        (ITSELF, {}, True),
        (ITSELF, {"reader": "r0"}, False),  # it has no such table
        (ITSELF, {"launch": 19}, False),
        (ITSELF, {"held": 66}, False),
        (ITSELF, {"block": 5}, False),
    ],
)
def test_a_shifted_block(read: dict[str, Any], changed: dict[str, Any], *, expected: bool) -> None:
    assert known(read, **changed) == expected


class _Scheduler:
    """A trie whose match appends two blocks, which admission may take back."""

    def __init__(self) -> None:
        self.table = [0, 1, 2, 9]
        self.block_trie = SimpleNamespace(match=lambda seq: self.table.extend((3, 4)))
        self.block_manager = SimpleNamespace(get_block_table=lambda seq: self.table)
        self.cache_config = SimpleNamespace(block_size=16)

    def sequence(self, cursor: int) -> Any:
        return SimpleNamespace(
            session_id=8,
            num_blocks=len(self.table),
            prefix_cache=SimpleNamespace(trie_cursor=SimpleNamespace(prefix_len=16 * cursor)),
        )


@pytest.mark.parametrize(
    ("cursor", "left", "expected"),
    [
        (3, [0, 1, 2, 9, 3, 4], [(3, 4, 3), (4, 5, 4)]),
        (3, [0, 1, 2, 9, 3, 7], [(3, 4, 3)]),  # the trie had another block for the second one
        (3, [0, 1, 2, 9], []),  # the match was taken back
        (4, [0, 1, 2, 9, 3, 4], []),  # each block is at its place
    ],
)
def test_a_match_counts_when_it_is_sent(
    cursor: int, left: list[int], expected: list[tuple[int, int, int]]
) -> None:
    scheduler, context = _Scheduler(), dict[str, Any]()
    matches = Matches(scheduler, {8: "r1"}, context)
    matches.watch()
    seq = scheduler.sequence(cursor)
    scheduler.block_trie.match(seq)
    scheduler.table = left
    matches.sent([seq], 20)
    matches.sent([seq], 21)
    rows = [
        {"request": "r1", "launch": 20, "block": block, "place": place, "own": own}
        for block, place, own in expected
    ]
    assert context[SHIFTED] == rows


NO_ROWS = (
    "the engine raised AttributeError: 'NoneType' object has no attribute 'is_decoding' in "
    "lmdeploy/pytorch/strategies/ar/model_inputs.py:index_select_model_inputs"
)


@pytest.mark.parametrize(
    ("sentence", "aborted", "expected"),
    [
        (NO_ROWS, ["r0"], True),
        (NO_ROWS, [], False),  # what was aborted had no part of its prompt computed, or all of it
        (NO_ROWS.replace("is_decoding", "is_chunk"), ["r0"], False),
    ],
)
def test_a_stopped_chunk(sentence: str, aborted: list[str], *, expected: bool) -> None:
    violation = Violation(
        "the_engine_keeps_running", "invariant", sentence, facts={"aborted_chunks": aborted}
    )
    found = Failed(violation, {"engine": {}}, [("abort", {}), ("drain", {})])
    assert mechanisms.stopped_chunk_joins_the_decodes(found) == expected
