"""Suites by level: `core` for any cache manager, `full` for groups, states and the reference.

A target that manages no blocks is judged, at either level, by the component suites that it provides
an implementation for.
"""

from __future__ import annotations

from contextlib import suppress

from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation.handles import Handle, refuse_profile
from kvproof.suites.conformance.suite import NAME as CACHE
from kvproof.suites.conformance.suite import cache_suite
from kvproof.suites.conformance.suite import properties as cache_properties
from kvproof.suites.framework.component_suite import ComponentSuite
from kvproof.suites.framework.property import Level, Property
from kvproof.suites.framework.suite import Suite, bound
from kvproof.suites.runner import registry


def suites(handle: Handle, level: Level) -> tuple[Suite, ...]:
    """Return the suites of a level for one target, in run order."""
    _refuse_unknown(handle)
    others = registry.SUITES if level == "full" else _instead_of_blocks(handle)
    return (cache_suite(handle, level), *(bound(suite, handle) for suite in others))


def _refuse_unknown(handle: Handle) -> None:
    """Raise UsageError for a component suite of a profile that there is not: nothing would run."""
    with suppress(TargetDied):  # its verdict comes when the target is started
        known = [suite.name for suite in registry.SUITES if suite.target_provided]
        for name in sorted(handle.profile.component_suites.keys() - set(known)):
            wrong = f"component_suites, key = {name!r}, legal: {' or '.join(map(repr, known))}"
            refuse_profile(handle.name, handle.factory, [wrong])


def _instead_of_blocks(handle: Handle) -> tuple[ComponentSuite, ...]:
    try:
        profile = handle.profile
    except TargetDied:  # its verdict comes when the target is started
        return ()
    provided = () if profile.blocks else profile.component_suites
    return tuple(suite for suite in registry.SUITES if suite.name in provided)


def catalogue(level: Level) -> dict[str, tuple[Property, ...]]:
    """Return suite -> properties of a level."""
    others = registry.SUITES if level == "full" else ()
    return {CACHE: cache_properties(level), **{each.name: each.properties for each in others}}


def properties(level: Level) -> list[Property]:
    """Return the properties of all suites of a level."""
    return [prop for suite in catalogue(level).values() for prop in suite]


def property_names() -> list[str]:
    """Return the names of all properties of all levels."""
    return [prop.name for prop in properties("full")]
