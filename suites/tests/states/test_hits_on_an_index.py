"""The suite `hits` on an engine's own index: right and wrong look-ups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import lcm
from typing import Any

import pytest
from hypothesis import settings

from kvproof.harness.contract.hit_index import answered
from kvproof.harness.contract.target import Group as Layers
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.component_suite import ComponentSuite
from kvproof.suites.framework.explore import Exploration
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.reference.hit_length.cases import Case, Group, has_all
from kvproof.suites.reference.hit_length.engine_index import longest, on_index

TRAITS = {
    "kinds": ["full", "window", "chunk", "state"], "drafts": True, "reach": "cached",
    "least_window": 1, "mixed": ["full", "window", "chunk", "state"],
}  # fmt: skip
Answer = tuple[int, list[list[int]]]
Fault = Callable[[Case, int, list[list[int]]], Answer]


class PlainIndex:
    """Looks up by trying every length, then answers with a fault."""

    def __init__(self, fault: Fault, groups: list[Layers], _variant: str) -> None:
        self._groups = tuple(Group(g.kind, g.block_size, g.size, g.draft) for g in groups)  # type: ignore[arg-type]  # kinds are those of the traits
        self._fault = fault

    def hit(self, limit: int, resident: list[list[int]]) -> Answer:
        ends = tuple(map(self._ends, self._groups, resident))
        case = Case(self._groups, limit, ends, ())
        hit = longest(case, "cached")
        return self._fault(case, hit, [self._up_to(hit, *each) for each in self._pairs(resident)])

    def _pairs(self, resident: list[list[int]]) -> list[tuple[Group, list[int]]]:
        return list(zip(self._groups, resident, strict=True))

    @staticmethod
    def _ends(group: Group, there: list[int]) -> tuple[int, ...]:
        return tuple((at + 1) * group.block_size if group.kind == "state" else at for at in there)

    @staticmethod
    def _up_to(hit: int, group: Group, there: list[int]) -> list[int]:
        return [at for at in there if (at + 1) * group.block_size <= hit]


def right(_: Case, hit: int, named: list[list[int]]) -> Answer:
    return hit, named


def a_unit_short(case: Case, hit: int, named: list[list[int]]) -> Answer:
    short = max(0, hit - lcm(*(group.block_size for group in case.groups)))
    sizes = [group.block_size for group in case.groups]
    return short, [
        [at for at in each if (at + 1) * n <= short] for n, each in zip(sizes, named, strict=True)
    ]


def windows_unseen(case: Case, hit: int, named: list[list[int]]) -> Answer:
    unit = lcm(*(group.block_size for group in case.groups))
    most = case.limit // unit * unit
    there = [set(each) for each in case.resident]
    others = [(g, t) for g, t in zip(case.groups, there, strict=True) if g.kind != "window"]
    return (most if all(has_all(g, t, most) for g, t in others) else hit), named


def names_one_too_many(_: Case, hit: int, named: list[list[int]]) -> Answer:
    return hit, [[*each, max(each, default=-1) + 1] for each in named]


def names_too_few(_: Case, hit: int, named: list[list[int]]) -> Answer:
    return hit, [each[:-1] for each in named]


def suite(fault: Fault) -> ComponentSuite:
    def ask(*calls: tuple[str, dict[str, Any]]) -> list[Any]:
        opening = partial(PlainIndex, fault)
        found: list[Any] = answered({"calls": calls}, TRAITS, opening)["answers"]
        return found

    return on_index(ask).suite


def test_a_right_index_passes_and_every_situation_occurs() -> None:
    made, met = suite(right), set[str]()
    wanted = {name for prop in made.properties for name in prop.situations}
    assert wanted
    for seed in (7, 1, 2, 3):  # one of seven explorations repeats too few configurations
        seen = made_explored(made, cases=40, seed=seed)
        assert seen.counterexample is None
        met |= {name for name, count in seen.situations.items() if count}
        if wanted <= met:
            break
    assert wanted <= met


@pytest.mark.parametrize(
    ("fault", "prop"),
    [
        (a_unit_short, "the_hit_is_the_longest_valid_length"),
        (windows_unseen, "the_length_is_valid_in_every_group"),
        (names_one_too_many, "the_length_is_valid_in_every_group"),
        (names_too_few, "the_length_is_valid_in_every_group"),
    ],
)
def test_a_wrong_index_fails(fault: Fault, prop: str) -> None:
    found = made_explored(suite(fault), cases=20).counterexample
    assert found is not None
    assert found.violation.property == prop
    assert found.violation.facts["groups"]


def made_explored(made: ComponentSuite, *, cases: int, seed: int = 7) -> Exploration:
    return explore(made, settings(BUDGETS["debug"], max_examples=cases), seed=seed)
