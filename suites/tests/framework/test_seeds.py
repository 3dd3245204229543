"""Exploration by seeds: what is counted, claimed, known, cut down and interrupted."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from hypothesis import settings

from kvproof.harness.errors import TargetDied
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.explore import Counts
from kvproof.suites.framework.known import Known
from kvproof.suites.framework.seeds import PARTS, explore_by_seed, seed_of
from kvproof.suites.tests.framework.suite_kit import StackMachine, stack

FEW = settings(BUDGETS["pr"], max_examples=30, stateful_step_count=20)
NAME = "what_is_pushed_comes_back"


class Histories:
    """Small stacks and large ones."""

    end = (("pop", {}),)

    def __init__(self) -> None:
        self.drawn: list[int] = []
        self.seeds: list[int] = []

    def config(self, choices: random.Random, number: int) -> Config:
        del choices
        self.drawn.append(number)
        return {"room": 5 if number % 2 else 1}

    def choices(self, seed: int) -> random.Random:
        self.seeds.append(seed)
        return random.Random(seed)

    def operation(self, machine: StackMachine, choices: random.Random) -> tuple[str, Any]:
        del machine
        return ("push", {"item": choices.randint(0, 9)}) if choices.random() < 0.6 else ("pop", {})


def suite(**options: Any) -> Any:
    return stack(**options)._replace(by_seed=Histories())


def test_a_budget_has_each_history_once_and_is_counted() -> None:
    whole = suite()
    seen = explore_by_seed(whole, FEW, seed=3)
    assert seen.counterexample is None
    assert seen.test_cases == 30
    assert seen.operations.total() == 30 * 21
    assert sorted(whole.by_seed.drawn) == list(range(30))
    assert whole.by_seed.seeds == [seed_of(3, number) for number in whole.by_seed.drawn]
    assert explore_by_seed(suite(), FEW, seed=3).checks == seen.checks
    assert explore_by_seed(suite(), FEW, seed=4).checks != seen.checks


def test_parts_that_another_process_explores_are_added_and_not_drawn_here() -> None:
    whole, alone = suite(), explore_by_seed(suite(), FEW, seed=3)
    parts = [
        explore_by_seed(
            suite(), FEW, seed=3, elsewhere=lambda at, own=part: None if at == own else Counts()
        )
        for part in range(PARTS)
    ]
    seen = explore_by_seed(
        whole, FEW, seed=3, elsewhere=lambda part: parts[part] if part % 2 else None
    )
    assert (seen.test_cases, seen.checks) == (alone.test_cases, alone.checks)
    assert {number % PARTS % 2 for number in whole.by_seed.drawn} == {0}


def test_a_failure_is_cut_down() -> None:
    seen = explore_by_seed(suite(broken=True), FEW, seed=3)
    assert seen.violation is not None
    assert seen.violation.property == NAME
    assert seen.first_case == seen.test_cases == 3
    assert seen.counterexample is not None
    assert len(seen.counterexample.history.operations) <= 6  # of 20: at least four


def test_a_failure_of_another_worker_is_counted_and_passed_over() -> None:
    seen = explore_by_seed(suite(broken=True), FEW, seed=3, claim=lambda _: False)
    assert seen.violation is None
    assert seen.test_cases == 30
    assert seen.unshrunk[NAME] > 5


def test_a_known_failure_ends_its_history_quietly() -> None:
    known = Known("by_a_bug", NAME, lambda _: True)
    seen = explore_by_seed(suite(broken=True)._replace(known=(known,)), FEW, seed=3)
    assert seen.violation is None
    assert seen.ended["by_a_bug"] == seen.tolerated["by_a_bug"] > 5
    assert not seen.unshrunk


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_what_stops_it_from_outside(error: type[BaseException]) -> None:
    whole = suite()
    draw, left = whole.by_seed.operation, iter(range(50))

    def stopped(*given: Any) -> Any:
        if next(left, None) is None:
            raise error
        return draw(*given)

    whole.by_seed.operation = stopped
    if error is ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):  # a fault of the harness
            explore_by_seed(whole, FEW, seed=3)
        return
    seen = explore_by_seed(whole, FEW, seed=3)
    assert seen.interrupted
    assert seen.operations.total() == 52  # the third history, and what ends two


def test_the_death_of_the_target_ends_it_with_its_history() -> None:
    class Dies(StackMachine):
        def pop(self) -> Any:
            raise TargetDied("crash", "it is gone")

    whole = suite()._replace(machine=Dies)
    seen = explore_by_seed(whole, FEW, seed=3)
    assert seen.died is not None
    assert seen.death is not None
    assert seen.death.history.operations[-1].verb == "pop"


def test_it_ends_in_time() -> None:
    assert explore_by_seed(suite(), FEW, seed=3, deadline=time.monotonic() - 1).test_cases == 0
