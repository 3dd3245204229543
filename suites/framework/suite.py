"""A suite in the runner: a component suite bound to its target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from hypothesis import settings

from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.settings import Drawing
from kvproof.suites.framework.component_suite import (
    Arguments,
    ComponentSuite,
    Counterexample,
    TargetProvided,
)
from kvproof.suites.framework.evidence import Evidence, evidence
from kvproof.suites.framework.explore import Exploration
from kvproof.suites.framework.known import Known
from kvproof.suites.framework.property import Property
from kvproof.suites.framework.seeds import explore_by_seed
from kvproof.suites.framework.state_machine import explore

SUBJECT = "reference"
"""The target with the components under test."""
ELSEWHERE = "it judges a component of the reference engine"
CALL_TIMEOUT_S = 120.0
"""Limit for the calls of one operation that a target carries out."""


class Suite(NamedTuple):
    """Properties of a target, with the component suite that exercises them."""

    component: ComponentSuite
    target: str
    properties: tuple[Property, ...]
    why_not: Callable[[Property], str]
    """Why a property does not apply to the target; empty if it does."""
    beyond: tuple[Property, ...] = ()
    """Properties of a higher level: they have a verdict only if they fail."""
    unsupported: Mapping[str, str] = {}
    """Level of a factor that no configuration has -> the reason."""

    @property
    def name(self) -> str:
        """The name of the component suite."""
        return self.component.name

    @property
    def judged(self) -> list[Property]:
        """Return the properties that apply; without any there is nothing to explore."""
        return [prop for prop in self.properties if not self.why_not(prop)]

    def of(self, name: str) -> Property:
        """Return the property of that name. Raises LookupError."""
        for prop in (*self.properties, *self.beyond):
            if prop.name == name:
                return prop
        raise LookupError(f"the suite {self.name!r} reports {name!r}, which is no property of it")

    def has(self, name: str) -> bool:
        """Whether it judges a property, at any level."""
        return any(prop.name == name for prop in (*self.properties, *self.beyond))

    def knowing(self, known: tuple[Known, ...]) -> Suite:
        """Return the suite for a target with these known failures."""
        return self._replace(component=self.component._replace(known=known))

    def explore(
        self, budget: settings, *, draw: Drawing | None = None, **options: Any
    ) -> Exploration:
        """Look for failures; see `state_machine.explore` and `seeds.explore_by_seed`.

        By seeds, where the suite has such histories and `draw` does not say otherwise.
        """
        by_seed = self.component.by_seed is not None if draw is None else draw == "seeds"
        return (explore_by_seed if by_seed else explore)(self.component, budget, **options)

    def evidence(self, found: Counterexample) -> Evidence:
        """Return the evidence of a failure."""
        return evidence(found, self.target)


def bound(suite: ComponentSuite, handle: Handle) -> Suite:
    """Bind a component suite to a target, or to the implementation that the target provides."""
    provided = None if handle.name == SUBJECT else _provided(suite, handle)
    if provided is None:

        def why_not(_: Property) -> str:
            return suite.missing() if handle.name == SUBJECT else ELSEWHERE

        return Suite(suite, handle.name, suite.properties, why_not)
    own = {prop.name: prop for prop in provided.suite.properties}
    return Suite(
        provided.suite,
        handle.name,
        tuple(own.get(prop.name, prop) for prop in suite.properties),
        lambda prop: provided.without.get(prop.name, ""),
        unsupported=provided.unsupported,
    )


def on_target(suite: ComponentSuite, handle: Handle) -> ComponentSuite:
    """Return a component suite on a target. Raises UsageError if it does not provide it."""
    if handle.name == SUBJECT:
        return suite
    provided = _provided(suite, handle)
    if provided is None:
        raise UsageError(
            f"target {handle.name!r} provides nothing that the suite {suite.name!r} can judge",
            f"replay it where it was recorded, or on {SUBJECT}",
        )
    return provided.suite


def _provided(suite: ComponentSuite, handle: Handle) -> TargetProvided | None:
    """A target that does not start provides nothing: its verdict comes when it is judged."""
    if suite.target_provided is None:
        return None
    try:
        job = handle.profile.component_suites.get(suite.name)
        return suite.target_provided(partial(_call, handle, job)) if job else None
    except TargetDied:
        return None


def _call(handle: Handle, job: str, *calls: tuple[str, Arguments]) -> list[Any]:
    reply = handle.run_job(job, {"calls": calls}, timeout=CALL_TIMEOUT_S)
    answers: list[Any] = reply["answers"]
    return answers
