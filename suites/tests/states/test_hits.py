"""Hit length against brute force on 5,000 cases, and the faults that its properties notice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest

from kvproof.harness.oracle.violation import Violation
from kvproof.suites.framework.component_suite import ComponentSuite
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
from kvproof.suites.tests.framework.planted import Fault, load, plant

CASES = 5_000
FAULT_CASES = 3_000
"""The last of the faults is noticed within 1,000."""


class Planted(NamedTuple):
    """A bug in the search for the hit: `property` has to notice that `old` is `new`."""

    story: str
    property: str
    module: str
    old: str
    new: str


HIT_LENGTH, GROUPS = "reference.cache.hit_length", "reference.core.attention_groups"
CHECKPOINTS = "reference.states.checkpoint_index"

FAULTS = (
    Planted(
        "one pass over the groups has to do",
        "the_length_is_valid_in_every_group",
        HIT_LENGTH,
        "            if length == before:\n                break\n",
        "            break\n",
    ),
    Planted(
        "a window counts its own position out (vLLM: contiguous blocks one short)",
        "the_length_is_valid_in_every_group",
        GROUPS,
        "hidden = tokens - self.size + 1",
        "hidden = tokens - self.size + 2",
    ),
    Planted(
        "a window asks for a token more than it sees",
        "the_hit_is_the_longest_valid_length",
        GROUPS,
        "hidden = tokens - self.size + 1",
        "hidden = tokens - self.size",
    ),
    Planted(
        "a chunk is taken for a window",
        "the_hit_is_the_longest_valid_length",
        GROUPS,
        "return tokens // self.size * self.size // self.unit",
        "return max(0, tokens - self.size) // self.unit",
    ),
    Planted(
        "a chunk border inside a block lets go of the whole block",
        "the_length_is_valid_in_every_group",
        GROUPS,
        "return tokens // self.size * self.size // self.unit",
        "return -(-(tokens // self.size * self.size) // self.unit)",
    ),
    Planted(
        "a window gives up at its first hole",
        "the_hit_is_the_longest_valid_length",
        GROUPS,
        "units = max(start, self._sees_nothing(last))",
        "units = self._sees_nothing(last)",
    ),
    Planted(
        "a draft group is looked up one unit short instead of one unit on (vLLM #31540 and kin)",
        "the_length_is_valid_in_every_group",
        HIT_LENGTH,
        "clamp(min(length + unit, limit)) - unit)",
        "clamp(length))",
    ),
    Planted(
        "each draft group takes its own unit off (vLLM #32802, #51771)",
        "several_draft_groups_cost_one_unit",
        HIT_LENGTH,
        "    return lambda length: fixpoint(length, (clamp, shifted))",
        "    return lambda length: max(0, clamp(length) - unit)",
    ),
    Planted(
        "a state takes the first checkpoint of a node, also one behind the length",
        "the_length_is_valid_in_every_group",
        CHECKPOINTS,
        "default=0)\n                if best:\n                    return marks[best]",
        "default=min(marks))\n                if best:\n                    return marks[best]",
    ),
    Planted(
        "only the first span is looked at",
        "the_length_is_outside_every_span",
        HIT_LENGTH,
        "index = bisect_left(starts, length) - 1",
        "index = min(0, bisect_left(starts, length) - 1)",
    ),
    Planted(
        "a length at the end of a span counts as inside",
        "the_hit_is_the_longest_valid_length",
        HIT_LENGTH,
        "length < stops[index] else length",
        "length <= stops[index] else length",
    ),
    Planted(
        "the last window asked keeps the last word",
        "the_order_of_groups_does_not_matter",
        HIT_LENGTH,
        "                for windows in self._windows:\n",
        "                for windows in self._windows[-1:]:\n",
    ),
    Planted(
        "windows do not clamp a hit without spans and drafts",
        "lost_tokens_add_up",
        HIT_LENGTH,
        "                    length = windows.clamp(node, length)\n",
        "                    windows.clamp(node, length)\n",
    ),
)


def cases(seed: int, count: int) -> Iterator[Case]:
    choose = Random(seed).randint
    for _ in range(count):
        yield choose_case(choose, choose_groups(choose))


class Alone(Coverage):
    """Only one property may fail."""

    alone = ""

    def check(self, prop, ok, sentence, *, oracle=""):
        super().check(prop, ok or prop != self.alone, sentence, oracle=oracle)


def judge(case: Case, part: ComponentSuite = SUITE, *, alone: str = "") -> Coverage:
    coverage = Alone(part.properties) if alone else Coverage(part.properties)
    if isinstance(coverage, Alone):
        coverage.alone = alone
    part.machine({"groups": case.groups}, coverage).apply("hit", **arguments_of(case))
    return coverage


@pytest.mark.slow(reason="explores until every situation occurs")
def test_equal_to_brute_force_on_five_thousand_cases() -> None:
    seen: Counter[str] = Counter()
    for case in cases(20_260_101, CASES):
        seen += judge(case).situations
    wanted = {name for prop in SUITE.properties for name in prop.situations}
    assert wanted == set(seen)
    assert min(seen.values()) > 25, seen


@pytest.mark.slow(reason="finds planted faults by exploration")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.story)
def test_each_fault_falls_to_its_property(fault: Planted) -> None:
    name = f"hits_{FAULTS.index(fault)}"
    plant(name, Fault(fault.module, fault.old, fault.new))
    broken = load(name, "suites.reference.hit_length.strategies").SUITE
    fallen: Counter[str] = Counter()
    for case in cases(7, FAULT_CASES):
        try:
            judge(case, broken, alone=fault.property)
        except Violation as violation:
            fallen[violation.property] += 1
        if fallen[fault.property]:
            break
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
