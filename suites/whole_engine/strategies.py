"""The suite `engine`: histories of an engine's own loop, on targets that provide one.

The operations follow from the traits of the engine. A property whose situations none of its
histories can show is unsupported, for the reason that the traits give.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import msgspec

from kvproof.harness.contract.whole_engine_traits import WholeEngineTraits
from kvproof.harness.errors import TargetDied
from kvproof.harness.records.timeline import Timeline
from kvproof.suites.framework.component_suite import (
    Arguments,
    ComponentSuite,
    Counterexample,
    DealtConfig,
    Draw,
    RemoteCalls,
    TargetProvided,
    counterexample,
)
from kvproof.suites.framework.pairs import Space
from kvproof.suites.framework.property import Property
from kvproof.suites.framework.rows import Factors, Given
from kvproof.suites.whole_engine.choices import Choices, Drawn, Seeded
from kvproof.suites.whole_engine.histories import config_of
from kvproof.suites.whole_engine.machine import EngineMachine
from kvproof.suites.whole_engine.operations import operation
from kvproof.suites.whole_engine.properties import PROPERTIES, SITUATION_NEEDS
from kvproof.suites.whole_engine.situation_levels import situation_levels
from kvproof.suites.whole_engine.table import factors, missing

_WHY_NOT = "it drives an engine's own loop: targets named *-engine provide one"


class LoopHistories:
    """Histories for one engine, drawn from seeds or by Hypothesis."""

    end: Sequence[tuple[str, Arguments]] = (("drain", {}),)

    def __init__(self, traits: WholeEngineTraits) -> None:
        self.traits = traits

    @cached_property
    def factors(self) -> Factors:
        """The table of the engine's configurations."""
        return factors(self.traits)

    def config(self, choices: Choices, number: int, given: Given | None = None) -> DealtConfig:
        """See BySeed. `given`: levels of some factors, or those to draw from."""
        rows = () if given else self.factors.covering
        row = rows[number] if number < len(rows) else self.factors.draw(choices.pick, given)
        return config_of(row, choices)

    def choices(self, seed: int) -> Seeded:
        """See BySeed."""
        return Seeded(seed, self.traits)

    operation = staticmethod(operation)

    def draw_config(self, draw: Draw) -> DealtConfig:
        """Draw a configuration."""
        choices = Drawn(draw, self.traits)
        return config_of(self.factors.draw(choices.pick), choices)

    def draw_operation(self, machine: EngineMachine, draw: Draw) -> tuple[str, Arguments]:
        """Draw the next operation."""
        return operation(machine, Drawn(draw, self.traits))


def timeline_of(found: Counterexample) -> Timeline | None:
    """Run a failing history again; return its timeline, None if it fails otherwise now."""
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
    """Return the suite for an engine, within its traits."""
    (declared,) = ask(("traits", {}))
    traits = msgspec.convert(declared, WholeEngineTraits)
    drawn = LoopHistories(traits)
    suite = SUITE._replace(
        properties=tuple(_possible(prop, traits) for prop in PROPERTIES),
        machine=partial(EngineMachine, ask, traits),
        draw_operation=drawn.draw_operation,
        draw_config=drawn.draw_config,
        by_seed=drawn,
        space=Space(drawn.factors, situation_levels(traits)),
        missing=str,
    )
    why = {prop.name: _why_not(prop, traits) for prop in PROPERTIES}
    without = {name: reason for name, reason in why.items() if reason}
    return TargetProvided(suite, {**without, **traits.without}, missing(traits))


def traits_of(suite: ComponentSuite) -> WholeEngineTraits:
    """Return the traits of the engine that provides the suite."""
    assert isinstance(suite.by_seed, LoopHistories), "the suite is that of an engine"
    return suite.by_seed.traits


def _possible(prop: Property, traits: WholeEngineTraits) -> Property:
    """Return the property without situations that the engine cannot come into."""
    able = [name for name in prop.situations if not _lacks(name, traits)]
    return prop._replace(situations=tuple(able))


def _why_not(prop: Property, traits: WholeEngineTraits) -> str:
    """Return why the property cannot be judged; empty: it can."""
    if prop.needs:
        return traits.lacks(prop.needs)
    reasons = [_lacks(name, traits) for name in prop.situations]
    return reasons[0] if reasons and all(reasons) else ""


def _lacks(situation: str, traits: WholeEngineTraits) -> str:
    need = SITUATION_NEEDS.get(situation)
    return traits.lacks(need) if need else ""


def _no_subject(*_: object) -> EngineMachine:
    raise LookupError(_WHY_NOT)


_UNBOUND = LoopHistories(WholeEngineTraits())
SUITE = ComponentSuite(
    "engine",
    PROPERTIES,
    _UNBOUND.draw_config,
    _no_subject,
    _UNBOUND.draw_operation,
    missing=lambda: _WHY_NOT,
    timeline=timeline_of,
    target_provided=provided,
    processes=2,
)
"""Suite without an engine; `provided` returns it for one."""
