"""Hit length against brute force on 5,000 cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.hit_length.cases import (
    Case,
    Group,
    choose_case,
    choose_groups,
    is_valid,
    longest_by_trying,
)
from kvproof.suites.reference.hit_length.strategies import SUITE, arguments_of

CASES = 5_000


def cases(seed: int, count: int) -> Iterator[Case]:
    choose = Random(seed).randint
    for _ in range(count):
        yield choose_case(choose, choose_groups(choose))


def judge(case: Case) -> Coverage:
    coverage = Coverage(SUITE.properties)
    SUITE.machine({"groups": case.groups}, coverage).apply("hit", **arguments_of(case))
    return coverage


@pytest.mark.nightly(reason="fewer cases are compared fast")
@pytest.mark.slow(reason="explores until every situation occurs")
def test_equal_to_brute_force_on_five_thousand_cases() -> None:
    seen: Counter[str] = Counter()
    for case in cases(20_260_101, CASES):
        seen += judge(case).situations
    wanted = {name for prop in SUITE.properties for name in prop.situations}
    assert wanted == set(seen)
    assert min(seen.values()) > 25, seen


def test_the_oracle_reads_positions_not_block_counts() -> None:
    groups = (Group("window", 4, 6, draft=False), Group("chunk", 2, 3, draft=True))
    case = Case(groups, 12, ((1,), (3, 5)), ())
    assert [length for length in range(13) if is_valid(case, length)] == [0]
    whole = case._replace(resident=((0, 1), (2, 3, 4, 5)))
    assert [length for length in range(13) if is_valid(whole, length)] == [0, 8]
    assert longest_by_trying(whole._replace(spans=((7, 9),))) == 0
