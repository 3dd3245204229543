"""Known failures of SGLang's sessions: a predicate knows its own and nothing near it."""

from __future__ import annotations

import pytest

from kvproof.harness.oracle.violation import Violation
from kvproof.suites.engines.sglang.mechanisms import sessions as known
from kvproof.suites.framework.failed import Failed


@pytest.mark.parametrize(
    ("free", "most", "aborted", "expected"),
    [
        (44, 0, {"r1": 2}, True),
        (42, 2, {"r1": 2}, True),
        (42, 2, {"r1": 1, "r4": 1}, True),
        (43, 0, {"r1": 2}, False),  # somebody else holds a block, too
        (44, 0, {}, False),
    ],
)
def test_blocks_of_an_aborted_turn(
    free: int, most: int, aborted: dict[str, int], *, expected: bool
) -> None:
    sentence = (
        f"{free} of 46 blocks can be handed out, with no request: open sessions have {{'s1': 9}} "
        f"tokens, {most} blocks at most"
    )
    violation = Violation("p", "o", sentence, facts={"aborted_turns": aborted})
    found = Failed(violation, {"engine": {}}, [("drain", {})])
    assert known.aborted_turns_keep_closed_sessions(found) == expected


@pytest.mark.parametrize(
    ("began", "session", "aborted", "expected"),
    [
        (8, "s0", {"r8": 2}, True),
        (9, "s0", {"r8": 2}, False),  # more than that turn has computed
        (8, "s1", {"r8": 2}, False),
        (8, None, {"r8": 2}, False),
        (8, "s0", {}, False),
    ],
)
def test_tokens_of_an_aborted_turn(
    began: int, session: str | None, aborted: dict[str, int], *, expected: bool
) -> None:
    sentence = (
        f"r13 begins at {began}: its session holds at least 0 tokens of it, and no more than 0 can "
        "be found"
    )
    violation = Violation("p", "o", sentence, facts={"aborted_turns": aborted})
    calls = [
        ("submit", {"id": "r8", "session": "s0"}),
        ("submit", {"id": "r13"} | ({"session": session} if session else {})),
    ]
    found = Failed(violation, {"engine": {"block_size": 4}}, calls)
    assert known.aborted_turns_keep_closed_sessions(found) == expected
