"""Three oracles on a toy engine: which planted fault each of them sees alone."""

from __future__ import annotations

import pytest

from kvproof.suites.tests.live.toy_paged import FAULTS, Verdicts, drive

from kvproof.harness.live.answers import Answer, judge  # isort: skip

SEEN = {
    "a table off by a block": Verdicts("fail", "fail", "fail"),
    "a slot mapping shifted": Verdicts("fail", "fail", "fail"),
    "a stale graph buffer": Verdicts("fail", "pass", "fail"),
    "a late copy": Verdicts("fail", "pass", "fail"),
    "a freed block reused": Verdicts("fail", "fail", "fail"),
    "a padded row that writes": Verdicts("fail", "fail", "fail"),
}


def test_a_correct_engine_passes_all_three() -> None:
    verdicts, engine = drive()
    assert verdicts == Verdicts("pass", "pass", "pass")
    assert engine.canary.poll().slots == engine.tables.checked > 400


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_seen_by_its_oracles(fault: str) -> None:
    assert drive(fault)[0] == SEEN[fault]


def test_answers_are_not_judged_where_recomputing_does_not_repeat() -> None:
    one, other = Answer((1, 2), (-0.5, -0.25)), Answer((1, 2), (-0.5, -0.250001))
    assert judge({"a": one}, {"a": one}, {"a": one}).verdict == "pass"
    assert judge({"a": other}, {"a": one}, {"a": one}).verdict == "fail"
    assert judge({"a": one}, {"a": one}, {"a": other}).verdict == "inconclusive"
    assert judge({"a": one}, {"a": one}, {}).verdict == "inconclusive"
    aborted = Answer((1,), (-0.5,))
    assert judge({"a": aborted}, {"a": one}, {"a": one}).verdict == "pass"
    assert judge({"a": Answer((9,), (-0.5,))}, {"a": one}, {"a": one}).differing == ("a",)
