"""Known failures of a threshold for long prompts: each predicate knows its own and nothing near."""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.harness.oracle.violation import Violation
from kvproof.suites.engines.vllm.mechanisms import loop as known
from kvproof.suites.framework.failed import Failed

PADDED = (
    "the engine raised AssertionError: assert num_new_tokens == 1 + self.num_spec_tokens in "
    "vllm/v1/core/sched/scheduler.py:schedule"
)
WAITS = "after 85 more steps, 80 of them without progress, {'r0': 'running', 'r1': 'running'} has"
THERE = "after 85 more steps, 80 of them without progress, the engine has not ended"
BOTH = {"r0": "running", "r1": "running"}
IMAGE = {"disable_chunked_mm_input": True, "long_prefill_token_threshold": 4}


def failed(sentence: str, engine: dict[str, Any], *lengths: int, **facts: object) -> Failed:
    calls = [
        ("submit", {"id": f"r{at}", "media": [[4, length, "cat"]] if length else []})
        for at, length in enumerate(lengths)
    ]
    return Failed(Violation("p", "o", sentence, facts=facts), {"engine": engine}, calls)


def drafts(count: int, threshold: int) -> dict[str, Any]:
    return {
        "drafts": {"method": "ngram", "count": count},
        "settings": {"long_prefill_token_threshold": threshold},
    }


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (failed(PADDED, drafts(4, 4)), True),
        (failed(PADDED, drafts(4, 5)), False),
        (failed(PADDED, drafts(4, 0)), False),
        (failed(PADDED, {"settings": {"long_prefill_token_threshold": 2}}), False),
        (failed(PADDED, {"drafts": None, "peer": drafts(2, 1)}), True),
        (failed(PADDED.replace("== 1 + self.num_spec_tokens", "> 0"), drafts(4, 2)), False),
    ],
)
def test_a_threshold_below_the_drafts(found: Failed, *, expected: bool) -> None:
    assert known.threshold_below_the_drafts_ends_the_engine(found) == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (failed(WAITS, {"settings": IMAGE}, 8, 8), True),
        (failed(WAITS, {"settings": IMAGE}, 8, 4), False),
        (failed(WAITS, {"settings": IMAGE}, 8, 0), False),
        (
            failed(WAITS.replace("'r1': 'running'", "'r1': 'waiting'"), {"settings": IMAGE}, 8, 0),
            True,
        ),
        (failed(WAITS.replace(", 'r1': 'running'", ""), {"settings": IMAGE}, 8, 8), False),
        (failed(WAITS.replace(" 80 of", " 0 of"), {"settings": IMAGE}, 8, 8), False),
        (failed(THERE, {"peer": {"settings": IMAGE}}, 8, 8, elsewhere=BOTH), True),
        (failed(THERE, {"settings": IMAGE, "peer": {}}, 8, 8, elsewhere=BOTH), False),
        (failed(THERE, {"peer": {"settings": IMAGE}}, 8, 8, elsewhere={"r0": "running"}), False),
        (failed(WAITS, {"settings": {**IMAGE, "disable_chunked_mm_input": False}}, 8, 8), False),
        (failed(WAITS, {"settings": {"disable_chunked_mm_input": True}}, 8, 8), False),
    ],
)
def test_images_above_the_threshold(found: Failed, *, expected: bool) -> None:
    assert known.image_above_the_threshold_waits_for_ever(found) == expected
