"""Which suites run: `core` for any cache manager, `full` for groups, states and the parts.

A target that manages no blocks is judged by the parts that it offers, at either level.
"""

from __future__ import annotations

from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation.handles import Handle
from kvproof.suites.conformance.suite import NAME as CACHE
from kvproof.suites.conformance.suite import cache_suite
from kvproof.suites.conformance.suite import properties as cache_properties
from kvproof.suites.framework.model_test import Part
from kvproof.suites.framework.model_test_suite import target_suite
from kvproof.suites.framework.property import Level, Property
from kvproof.suites.framework.suite import Suite
from kvproof.suites.runner import registry


def suites(handle: Handle, level: Level) -> tuple[Suite, ...]:
    """Return the suites of a level for one target, in the order in which they run."""
    parts = registry.PARTS if level == "full" else _instead_of_blocks(handle)
    return (cache_suite(handle, level), *(target_suite(part, handle) for part in parts))


def _instead_of_blocks(handle: Handle) -> tuple[Part, ...]:
    try:
        profile = handle.profile
    except TargetDied:  # it is told when the target is started
        return ()
    return tuple(p for p in registry.PARTS if p.name in profile.parts and not profile.blocks)


def catalogue(level: Level) -> dict[str, tuple[Property, ...]]:
    """Return suite -> properties: what a target is judged by at a level."""
    parts = registry.PARTS if level == "full" else ()
    return {CACHE: cache_properties(level), **{part.name: part.properties for part in parts}}


def properties(level: Level) -> list[Property]:
    """Return the properties of all suites of a level."""
    return [prop for suite in catalogue(level).values() for prop in suite]


def property_names() -> list[str]:
    """Return the names of all properties of all levels."""
    return [prop.name for prop in properties("full")]
