"""Planted faults that must fall to their properties, on copies of the reference."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hypothesis import Phase, settings

from kvproof.suites.faults.catalogue import PlantedFault, of_suite
from kvproof.suites.faults.planting import Change
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.component_suite import ComponentSuite, Counterexample
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.tests.framework.planted import load, plant

UNSHRUNK = settings(BUDGETS["pr"], phases=[Phase.generate])
SEEDS = 4
"""Tried one after the other where the derandomised draws do not show a fault: most do."""


def fallen(explored: Callable[[int | None], Any]) -> Any:
    """The first exploration of some seeds that finds a violation, or else the last.

    One seed is not enough: Hypothesis draws constants of the modules that are loaded, so that
    what a seed draws depends on the tests that ran before.
    """
    seen = explored(None)
    for seed in range(SEEDS):
        if seen.violation is not None:
            break
        seen = explored(seed)
    return seen


def of_property(suite: str) -> list[PlantedFault]:
    """One fault of the catalogue for each property of a suite: the first."""
    return [*{fault.property: fault for fault in reversed(of_suite(suite))}.values()]


def home(suite: str) -> str:
    """The module below `kvproof` whose `SUITE` is the component suite of this name."""
    for name, module in sys.modules.items():
        ours = name.startswith("kvproof.suites.reference.") and name.endswith(".strategies")
        if ours and module.SUITE.name == suite:
            return name.removeprefix("kvproof.")
    raise KeyError(suite)


def broken(part: ComponentSuite, fault: Change) -> ComponentSuite:
    """The part on a copy of the reference, and of the pages that it moves, that has the fault."""
    plant(fault.name, fault)
    found: ComponentSuite = load(fault.name, home(part.name)).SUITE
    return found


def falls(part: ComponentSuite, fault: PlantedFault, budget: settings = UNSHRUNK) -> Counterexample:
    """Its property finds the fault on a part that has it, whatever else fails; return how."""
    others = {prop.name for prop in part.properties} - {fault.property}
    seen = fallen(lambda seed: explore(part, budget, seed=seed, tolerate=others))
    found: Counterexample | None = seen.counterexample
    assert found is not None, (seen.died, seen.tolerated)
    assert found.violation.property == fault.property
    return found
