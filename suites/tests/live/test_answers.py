"""Logits against two cold engines: bits where they repeat, else the distance between the two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvproof.harness.adapters.vllm_live.answers import FACTOR, MOST, judge
from kvproof.harness.adapters.vllm_live.answers import LEAST as STEPS

RESOLUTION = 2.0**-10
LEAST = STEPS * RESOLUTION
COLD = np.random.default_rng(0).normal(size=64).astype(np.float32)


def rows(away: float, *, name: str = "a", at: int = 9) -> Any:
    """Logits at a distance from those of the cold engine."""
    off = np.random.default_rng(1).normal(size=64)
    off *= away * np.linalg.norm(COLD) / np.linalg.norm(off)
    return {name: {at: (COLD + off).astype(np.float32)}}


@pytest.mark.parametrize(
    ("served", "again", "verdict"),
    [
        (0.0, 0.0, "pass"),
        (LEAST / 4, 0.0, "pass"),  # bits need not repeat in other company
        (LEAST * 2, 0.0, "fail"),
        (LEAST / 4, LEAST / 100, "pass"),
        (LEAST * 2, LEAST / 100, "fail"),
        (LEAST * FACTOR * 0.9, LEAST, "pass"),
        (LEAST * FACTOR * 1.2, LEAST, "fail"),
        (0.0, MOST * 1.1, "inconclusive"),
    ],
)
def test_distance_is_held_against_that_of_two_cold_engines(
    served: float, again: float, verdict: str
) -> None:
    judged = judge(rows(served), rows(0.0), rows(again), {"a": 9}, resolution=RESOLUTION)
    assert judged.verdict == verdict
    if verdict == "pass":
        assert judged.sentence.startswith(f"{int(not served)} of 1 rows")
    assert judged.request == ("a" if verdict == "fail" else "")


def test_nothing_is_judged_without_a_second_answer() -> None:
    assert (
        judge(rows(0.0), rows(0.0), {}, {"a": 9}, resolution=RESOLUTION).verdict == "inconclusive"
    )


def test_logits_of_a_chunk_of_a_prompt_are_not_judged() -> None:
    early = {"a": {3: rows(1.0)["a"][9], 9: COLD}}
    cold = {"a": {3: COLD, 9: COLD}}
    assert judge(early, cold, rows(0.0), {"a": 9}, resolution=RESOLUTION).verdict == "pass"
    assert judge(early, cold, rows(0.0), {"a": 3}, resolution=RESOLUTION).verdict == "fail"
