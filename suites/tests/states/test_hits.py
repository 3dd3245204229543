"""Hit length against brute force on 100,000 cases, and the faults that its properties notice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest

from kvproof.harness.oracle.violation import Violation
from kvproof.suites.framework.component_suite import ComponentSuite
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.hit_length.cases import Case, Group, choose_case, choose_groups
from kvproof.suites.reference.hit_length.oracle import is_valid, longest_by_trying
from kvproof.suites.reference.hit_length.strategies import SUITE, arguments_of
from kvproof.suites.tests.framework.planted import Fault, load, plant

CASES = 100_000
FAULT_CASES = 5_000
"""The last of the faults is noticed within 1,000."""


class Planted(NamedTuple):
    """A bug in `hit_length`: `property` has to notice that `old` is `new`."""

    story: str
    property: str
    old: str
    new: str


FAULTS = (
    Planted(
        "one pass over the groups has to do",
        "the_length_is_outside_every_span",
        "        if length == before:\n            return length\n\n\nclass Reduction",
        "        return length\n\n\nclass Reduction",
    ),
    Planted(
        "a window counts its own position out (vLLM: contiguous blocks one short)",
        "the_length_is_valid_in_every_group",
        "return max(0, length - size + 1)",
        "return max(0, length - size + 2)",
    ),
    Planted(
        "a window asks for a token more than it sees",
        "the_hit_is_the_longest_valid_length",
        "return max(0, length - size + 1)",
        "return max(0, length - size)",
    ),
    Planted(
        "a chunk is taken for a window",
        "the_hit_is_the_longest_valid_length",
        'return length // size * size if kind == "chunk" else length',
        'return max(0, length - size) if kind == "chunk" else length',
    ),
    Planted(
        "a chunk border inside a block lets go of the whole block",
        "the_length_is_valid_in_every_group",
        "first = first_visible(kind, size, stop * block_size) // block_size",
        "first = -(-first_visible(kind, size, stop * block_size) // block_size)",
    ),
    Planted(
        "a window gives up at its first hole",
        "the_hit_is_the_longest_valid_length",
        "            stop = hole  # any",
        "            stop = present.find(0)  # any",
    ),
    Planted(
        "a draft group is looked up one unit short instead of one unit on (vLLM #31540 and kin)",
        "the_length_is_valid_in_every_group",
        "floor(min(length + unit, limit)) - unit)",
        "floor(length))",
    ),
    Planted(
        "each draft group takes its own unit off (vLLM #32802, #51771)",
        "several_draft_groups_cost_one_unit",
        "    return lambda length: longest(length, (floor, shifted))",
        "    return lambda length: max(0, floor(length) - unit)",
    ),
    Planted(
        "a state takes the next checkpoint",
        "the_length_is_valid_in_every_group",
        "return positions[index - 1] if index else 0",
        "return positions[min(index, len(positions) - 1)] if index else 0",
    ),
    Planted(
        "only the first span is looked at",
        "the_length_is_outside_every_span",
        "index = bisect_left(starts, length) - 1",
        "index = min(0, bisect_left(starts, length) - 1)",
    ),
    Planted(
        "a length at the end of a span counts as inside",
        "the_hit_is_the_longest_valid_length",
        "length < stops[index] else length",
        "length <= stops[index] else length",
    ),
    Planted(
        "the first group asked keeps the last word",
        "the_order_of_groups_does_not_matter",
        "        if length == before:\n            return length\n\n\nclass Reduction",
        "        return floors[0](length) if floors else length\n\n\nclass Reduction",
    ),
    Planted(
        "what the later rounds take off is not told",
        "lost_tokens_add_up",
        "    while length != before:\n        before = length\n",
        "    while before > limit:\n        before = length\n",
    ),
)


def cases(seed: int, count: int) -> Iterator[Case]:
    choose = Random(seed).randint
    for _ in range(count):
        yield choose_case(choose, choose_groups(choose))


def judge(case: Case, part: ComponentSuite = SUITE) -> Coverage:
    coverage = Coverage(part.properties)
    part.machine({"groups": case.groups}, coverage).apply("hit", **arguments_of(case))
    return coverage


def test_equal_to_brute_force_on_a_hundred_thousand_cases() -> None:
    seen: Counter[str] = Counter()
    for case in cases(20_260_101, CASES):
        seen += judge(case).situations
    wanted = {name for prop in SUITE.properties for name in prop.situations}
    assert wanted == set(seen)
    assert min(seen.values()) > 500, seen


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.story)
def test_each_fault_falls_to_its_property(fault: Planted) -> None:
    name = f"hits_{FAULTS.index(fault)}"
    plant(name, Fault("reference.core.fixpoint", fault.old, fault.new))
    broken = load(name, "suites.reference.hit_length.strategies").SUITE
    fallen: Counter[str] = Counter()
    for case in cases(7, FAULT_CASES):
        try:
            judge(case, broken)
        except Violation as violation:
            fallen[violation.property] += 1
    assert fallen[fault.property], fallen


def test_every_property_notices_some_fault() -> None:
    assert {fault.property for fault in FAULTS} == {prop.name for prop in SUITE.properties}


def test_the_oracle_reads_positions_not_block_counts() -> None:
    groups = (Group("window", 4, 6, draft=False), Group("chunk", 2, 3, draft=True))
    case = Case(groups, 12, ((1,), (3, 5)), ())
    assert [length for length in range(13) if is_valid(case, length)] == [0]
    whole = case._replace(resident=((0, 1), (2, 3, 4, 5)))
    assert [length for length in range(13) if is_valid(whole, length)] == [0, 8]
    assert longest_by_trying(whole._replace(spans=((7, 9),))) == 0
