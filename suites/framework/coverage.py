"""Counters of checks and situations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from kvproof.harness.oracle.violation import Violation
from kvproof.suites.framework.property import Property


class Coverage:
    """Counts checks, events and operations of one history; `check` also judges."""

    def __init__(self, properties: Iterable[Property]) -> None:
        self.checks: Counter[str] = Counter()
        self.situations: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        """Length of a cache hit, in units -> count, where the system under test has hits."""
        self.operations: Counter[str] = Counter()
        self._oracles = {prop.name: prop.oracle for prop in properties}

    def event(self, situation: str, happened: object = True) -> None:  # noqa: FBT002 - a condition
        """Count a situation if `happened` is true."""
        if happened:
            self.situations[situation] += 1

    def check(
        self, prop: str, ok: object, sentence: Callable[[], str], *, oracle: str = ""
    ) -> None:
        """Count a check. Raises Violation if `ok` is false, KeyError for an unknown property.

        `oracle` replaces the property's own oracle.
        """
        judge = self._oracles[prop]
        self.checks[prop] += 1
        if not ok:
            raise Violation(prop, oracle or judge, sentence())
