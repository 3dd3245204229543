"""Argument of a predicate: a violation, and the history that it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kvproof.harness.oracle.state import OracleState
from kvproof.harness.oracle.violation import Violation

Predicate = Callable[["Failed"], bool]
Adopt = Callable[["Failed"], None]
T = TypeVar("T")


class MissingFact(LookupError):
    """The violation comes from a check without this fact: it is another failure."""


@dataclass(frozen=True)
class Failed:
    """A violation, with the configuration and the operations before it."""

    violation: Violation
    config: Mapping[str, Any]
    calls: Sequence[tuple[str, Mapping[str, Any]]]
    """Verbs and keywords; the last one failed. None: the target failed when it was made."""

    @property
    def state(self) -> OracleState:
        """The oracle's state, for the suite `cache`. Raises MissingFact for others."""
        if self.violation.state is None:
            raise MissingFact(f"{self.violation.property} has no state: its suite is another")
        return self.violation.state

    @property
    def verb(self) -> str:
        """The operation that failed; empty: the making of the target."""
        return self.calls[-1][0] if self.calls else ""

    def has(self, *names: str) -> bool:
        """Whether the violation carries these facts."""
        return all(name in self.violation.facts for name in names)

    def fact(self, name: str, kind: type[T]) -> T:
        """Return a fact of the violation. Raises MissingFact, or TypeError for another type."""
        if not self.has(name):
            raise MissingFact(f"{self.violation.property} has no {name!r}")
        found = self.violation.facts[name]
        if not isinstance(found, kind):
            raise TypeError(f"{name} is {found!r}, not a {kind.__name__}")
        return found
