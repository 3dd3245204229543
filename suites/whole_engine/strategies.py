"""The suite `engine`: histories drawn by Hypothesis, on targets that provide an engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kvproof.harness.errors import TargetDied
from kvproof.harness.records.timeline import Timeline
from kvproof.suites.framework.component_suite import (
    Arguments,
    ComponentSuite,
    Config,
    Counterexample,
    Draw,
    RemoteCalls,
    TargetProvided,
    WorkloadConfigs,
    counterexample,
)
from kvproof.suites.whole_engine.choices import Choices, Drawn
from kvproof.suites.whole_engine.histories import PROFILES, operation
from kvproof.suites.whole_engine.machine import EngineMachine
from kvproof.suites.whole_engine.properties import PROPERTIES

_WHY_NOT = "it drives an engine's own loop: targets named *-engine provide one"


def _theme(choose: Callable[[Choices], Config], draw: Draw) -> Config:
    return choose(Drawn(draw))


def draw_operation(machine: EngineMachine, draw: Draw) -> tuple[str, Arguments]:
    """Draw the next operation."""
    return operation(machine, Drawn(draw))


def timeline_of(found: Counterexample) -> Timeline | None:
    """Run a failing history again; return who ran when, None if it fails otherwise now."""
    history = found.history
    calls = [(each.verb, each.arguments) for each in history.operations]
    try:
        again = counterexample(history.suite, history.config, calls)
        same = again and again.violation.property == found.violation.property
        timeline: Timeline | None = again.history.machine.timeline() if again and same else None
    except TargetDied:
        return None
    return timeline


def provided(ask: RemoteCalls) -> TargetProvided:
    (traits,) = ask(("traits", {}))
    suite = SUITE._replace(machine=partial(EngineMachine, ask), missing=str)
    return TargetProvided(suite, traits["without"])


def _no_subject(*_: object) -> EngineMachine:
    raise LookupError(_WHY_NOT)


SUITE = ComponentSuite(
    "engine",
    PROPERTIES,
    partial(_theme, PROFILES["plain"]),
    _no_subject,
    draw_operation,
    profiles=tuple(
        WorkloadConfigs(name, partial(_theme, choose)) for name, choose in PROFILES.items()
    ),
    missing=lambda: _WHY_NOT,
    timeline=timeline_of,
    target_provided=provided,
    processes=2,
)
