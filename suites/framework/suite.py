"""What the runner knows of a suite: its properties, and how to look for failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvproof.harness.oracle.violation import Violation
from kvproof.harness.records.events import BlockView, Step
from kvproof.suites.framework.explore import Exploration
from kvproof.suites.framework.property import Property


class Evidence(NamedTuple):
    """Everything about a violation that a person can use."""

    fingerprint: str
    log: bytes
    script: str
    history: list[Step]
    blocks: list[BlockView]
    tables: dict[str, list[int]]


class Suite(NamedTuple):
    """Properties of one subject, with the machine that exercises them."""

    name: str
    properties: tuple[Property, ...]
    why_not: Callable[[Property], str]
    """Why the target is not judged by a property; empty if it is."""
    explore: Callable[..., Exploration]
    """Takes a budget, and the keywords `seed`, `progress`, `tolerate`, `deadline` and `claim`."""
    evidence: Callable[[Violation], Evidence]
    beyond: tuple[Property, ...] = ()
    """Properties of a higher level: they have a verdict only if they fail."""

    @property
    def judged(self) -> list[Property]:
        """The properties that the target is judged by; none: there is nothing to explore."""
        return [prop for prop in self.properties if not self.why_not(prop)]

    def of(self, name: str) -> Property:
        """Return the property of that name. Raises LookupError."""
        for prop in (*self.properties, *self.beyond):
            if prop.name == name:
                return prop
        raise LookupError(f"the suite {self.name!r} reports {name!r}, which is no property of it")
