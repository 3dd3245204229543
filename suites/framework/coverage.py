"""Counters of checks and situations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from kvproof.harness.contract.factors import Row
from kvproof.harness.oracle.violation import Violation
from kvproof.suites.framework.property import Property

_NO_FACTS: Mapping[str, object] = MappingProxyType({})


class Coverage:
    """Counts checks, events and operations of one history; `check` also judges."""

    def __init__(self, properties: Iterable[Property]) -> None:
        self.checks: Counter[str] = Counter()
        self.situations: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        """Length of a cache hit, in units -> count, where the system under test has hits."""
        self.operations: Counter[str] = Counter()
        self.row: Row = {}
        """Levels of the configuration, where the suite has a table of factors."""
        self.excuse: Callable[[Violation], bool] = lambda _: False
        """Whether a violation is a known one after which the history goes on."""
        self._oracles = {prop.name: prop.oracle for prop in properties}

    def event(self, situation: str, happened: object = True) -> None:  # noqa: FBT002 - a condition
        """Count a situation if `happened` is true."""
        if happened:
            self.situations[situation] += 1

    def check(
        self,
        prop: str,
        ok: object,
        sentence: Callable[[], str],
        *,
        oracle: str = "",
        facts: Mapping[str, object] = _NO_FACTS,
    ) -> bool:
        """Count a check; returns whether it held; False: it failed, as is known.

        Raises Violation if `ok` is false, KeyError for an unknown property. `oracle` replaces the
        property's own oracle. `facts`: the numbers of the sentence, by name.
        """
        judge = self._oracles[prop]
        self.checks[prop] += 1
        if not ok:
            violation = Violation(prop, oracle or judge, sentence(), facts=facts)
            if not self.excuse(violation):
                raise violation
        return bool(ok)

    def equal(
        self,
        prop: str,
        found: object,
        expected: object,
        what: str,
        *,
        oracle: str = "",
        facts: Mapping[str, object] = _NO_FACTS,
    ) -> bool:
        """Check that two values are equal; the sentence is `<what> <found>, expected <expected>`.

        Returns and raises as `check`.
        """
        return self.check(
            prop,
            found == expected,
            lambda: f"{what} {found}, expected {expected}",
            oracle=oracle,
            facts=facts,
        )
