"""Parts that must pass on the reference, and planted faults that must fall to their properties."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import Phase, settings

from kvproof.suites.cache.budgets import BUDGETS
from kvproof.suites.faults.catalogue import Fault as Catalogued
from kvproof.suites.faults.catalogue import of_suite
from kvproof.suites.part import Part
from kvproof.suites.part_machine import explore
from kvproof.suites.tests.planted import Fault, load, plant

UNSHRUNK = settings(BUDGETS["pr"], phases=[Phase.generate])
SEEDS = 4
"""Where a fault is not seen at once: most are with the first."""


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


def sees_everything(part: Part) -> None:
    """The part passes, evaluates every property and meets every situation."""
    seen = explore(part, UNSHRUNK)
    assert (seen.violation, seen.died) == (None, None), seen.violation or seen.died
    assert set(seen.checks) == {prop.name for prop in part.properties}
    needed = {situation for prop in part.properties for situation in prop.situations}
    assert needed <= set(seen.situations)


def broken(part: Part, index: int, fault: Planted) -> Part:
    """The part on a copy of the reference that has the fault."""
    name = f"{part.name}_{index}"
    plant(name, Fault(f"reference.{fault.module}", fault.old, fault.new))
    found: Part = load(name, f"suites.{part.name}.part").PART
    return found


def falls(part: Part, index: int, fault: Planted, *, seeds: int = 0) -> None:
    """The fault is found by its property, and told by nothing else; one of `seeds` has to do."""
    copy = broken(part, index, fault)
    others = {prop.name for prop in part.properties} - {fault.property}
    drawn = range(seeds) if seeds else [None]
    runs = (explore(copy, UNSHRUNK, seed=seed, tolerate=others) for seed in drawn)
    seen = [run for run in runs if run.violation or not seeds][:1]
    assert seen, f"{fault.story} survived {seeds} seeds"
    assert seen[0].violation is not None, (seen[0].died, seen[0].tolerated)
    assert seen[0].violation.property == fault.property
