"""Parts that must pass on the reference, and planted faults that must fall to their properties."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import Phase, settings

from kvproof.suites.cache.budgets import BUDGETS
from kvproof.suites.part import Part
from kvproof.suites.part_machine import explore
from kvproof.suites.tests.planted import Fault, load, plant

UNSHRUNK = settings(BUDGETS["pr"], phases=[Phase.generate])


class Planted(NamedTuple):
    """A fault in a module of the reference, and the property that must find it alone."""

    story: str
    property: str
    module: str
    old: str
    new: str


def sees_everything(part: Part) -> None:
    """The part passes, evaluates every property and meets every situation."""
    seen = explore(part, UNSHRUNK)
    assert (seen.violation, seen.died) == (None, None)
    assert set(seen.checks) == {prop.name for prop in part.properties}
    needed = {situation for prop in part.properties for situation in prop.situations}
    assert needed <= set(seen.situations)


def falls(part: Part, index: int, fault: Planted) -> None:
    """The fault is found by its property, and told by nothing else."""
    name = f"{part.name}_{index}"
    plant(name, Fault(f"reference.{fault.module}", fault.old, fault.new))
    broken = load(name, f"suites.{part.name}.part").PART
    others = {prop.name for prop in part.properties} - {fault.property}
    seen = explore(broken, UNSHRUNK, tolerate=others)
    assert seen.violation is not None, (seen.died, seen.tolerated)
    assert seen.violation.property == fault.property
