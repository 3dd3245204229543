"""The suite `cache`: drives any target through its contract; the shadow memory judges it."""

from __future__ import annotations

from functools import partial

from kvproof.harness.contract.operations import compact
from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.reproduce.oplog import CACHE
from kvproof.suites.conformance.configs import config_of
from kvproof.suites.conformance.machine import SessionMachine, SessionReporting
from kvproof.suites.conformance.profiles import (
    CORE,
    WorkloadProfile,
    profiles,
    rows_of,
)
from kvproof.suites.conformance.properties import PROPERTIES, on, supported, why_unsupported
from kvproof.suites.conformance.rules import CacheRules
from kvproof.suites.conformance.situation_levels import situation_levels
from kvproof.suites.conformance.table import missing
from kvproof.suites.framework.component_suite import (
    ComponentSuite,
    DealtConfig,
    Draw,
    WorkloadConfigs,
)
from kvproof.suites.framework.dealt import DealtRows
from kvproof.suites.framework.pairs import Space
from kvproof.suites.framework.property import Level, Property
from kvproof.suites.framework.suite import Suite

NAME = CACHE


def properties(level: Level) -> tuple[Property, ...]:
    """Return the properties of a level."""
    return tuple(prop for prop in PROPERTIES if level == "full" or prop.level == "core")


def cache_suite(handle: Handle, level: Level) -> Suite:
    """Return the suite for one target."""

    def why_not(prop: Property) -> str:
        profile = handle.profile
        return "" if supported(prop, profile) else why_unsupported(prop, profile)

    component = conformance(handle, level)
    beyond = tuple(prop for prop in PROPERTIES if prop not in properties(level))
    return Suite(component, handle.name, component.properties, why_not, beyond)


def conformance(handle: Handle, level: Level = "full") -> ComponentSuite:
    """Return the component suite whose machine holds a target of `handle` and a `Session`."""
    judged, drawn, space = properties(level), tuple[WorkloadConfigs, ...](), None
    try:
        profile = handle.profile
        judged = tuple(on(prop, profile) for prop in judged)
        every, rows = profiles(profile, level), rows_of(profile, level)
        if profile.blocks:
            space = Space(rows.table, situation_levels(profile), missing(profile))
        drawn = tuple(_configs(each, handle, rows) for each in every)
    except TargetDied:  # its verdict comes when the target is started
        pass
    return ComponentSuite(
        name=NAME,
        properties=judged,
        draw_config=partial(_draw_core, handle),
        machine=partial(SessionMachine, handle),
        profiles=drawn,
        space=space,
        under_test=(),  # the handle separates errors of the target from others
        rules=CacheRules,
        reporting=SessionReporting(),
        portable=True,
    )


def _configs(each: WorkloadProfile, handle: Handle, rows: DealtRows) -> WorkloadConfigs:
    options = {"profile": each, "target": handle.profile, "fixed": rows.table.fixed}
    return WorkloadConfigs(each.name, partial(_draw_config, each, handle, rows), options)


def _draw_config(each: WorkloadProfile, handle: Handle, rows: DealtRows, draw: Draw) -> DealtConfig:
    row = rows.beyond(each.given, draw) if each.change else rows.draw(each.name, draw)
    whole = {**rows.table.fixed, **row}
    config = compact(config_of(whole, handle.profile, draw, each.change))
    return DealtConfig(config, row)


def _draw_core(handle: Handle, draw: Draw) -> DealtConfig:
    return _draw_config(CORE, handle, rows_of(handle.profile, "core"), draw)
