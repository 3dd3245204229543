"""Parts that must pass on the reference, and planted faults that must fall to their properties."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import Phase, settings

from kvproof.suites.faults.catalogue import Fault as Catalogued
from kvproof.suites.faults.catalogue import of_suite
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.component_suite import ComponentSuite
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.tests.framework.planted import Fault, load, plant

UNSHRUNK = settings(BUDGETS["pr"], phases=[Phase.generate])
SEEDS = 4
"""Tried one after the other where the derandomised draws do not show a fault: most do."""


class Planted(NamedTuple):
    """A fault in a module of the reference, and the property that must find it alone."""

    story: str
    property: str
    module: str
    old: str
    new: str
    config: dict[str, Any] = {}  # noqa: RUF012 - read only
    """What every configuration has, so that the fault shows before something breaks down."""


def from_catalogue(fault: Catalogued, **more: Any) -> Planted:
    """A fault of the catalogue as a part's test takes it; `more` replaces fields."""
    module = fault.module.removeprefix("reference.")
    found = Planted(fault.name, fault.property, module, fault.old, fault.new)
    return found._replace(**more)


def catalogued(suite: str) -> tuple[Planted, ...]:
    """The faults of the catalogue that a part has to find."""
    return tuple(from_catalogue(fault) for fault in of_suite(suite))


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


def sees_everything(part: ComponentSuite, budget: settings = UNSHRUNK) -> None:
    """The part passes, evaluates every property and meets every situation, if not at once."""
    needed = {situation for prop in part.properties for situation in prop.situations}
    checked, met = set[str](), set[str]()
    for seed in (None, *range(SEEDS)):
        seen = explore(part, budget, seed=seed)
        assert (seen.violation, seen.died) == (None, None), seen.violation or seen.died
        checked |= set(seen.checks)
        met |= set(seen.situations)
        if needed <= met:
            break
    assert checked == {prop.name for prop in part.properties}
    assert needed <= met, needed - met


def home(suite: str) -> str:
    """The module below `kvproof` whose `SUITE` is the component suite of this name."""
    for name, module in sys.modules.items():
        ours = name.startswith("kvproof.suites.reference.") and name.endswith(".strategies")
        if ours and module.SUITE.name == suite:
            return name.removeprefix("kvproof.")
    raise KeyError(suite)


def broken(part: ComponentSuite, index: int, fault: Planted) -> ComponentSuite:
    """The part on a copy of the reference, and of the pages that it moves, that has the fault."""
    name = f"{part.name}_{index}"
    module = fault.module if fault.module.startswith("kernels.") else f"reference.{fault.module}"
    plant(name, Fault(module, fault.old, fault.new))
    found: ComponentSuite = load(name, home(part.name)).SUITE
    return found


def falls(part: ComponentSuite, index: int, fault: Planted, budget: settings = UNSHRUNK) -> None:
    """The fault is found by its property, and by nothing else."""
    copy = broken(part, index, fault)
    others = {prop.name for prop in part.properties} - {fault.property}
    seen = fallen(lambda seed: explore(copy, budget, seed=seed, tolerate=others))
    assert seen.violation is not None, (seen.died, seen.tolerated)
    assert seen.violation.property == fault.property
