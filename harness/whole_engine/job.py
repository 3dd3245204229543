"""The calls by which a suite reaches an engine in its own process; keywords and answers are JSON.

`open(config)` starts an engine and returns why it refuses the configuration, if it does;
`apply(verb, keywords)` carries out an operation and returns checks, situations and violation since
the last one; `traits()` returns the engine's `WholeEngineTraits` as JSON;
`go_on()` takes over the engine's state after a known failure, and returns the next one;
`timeline()` returns the steps of each request until the violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from kvproof.harness.contract.whole_engine import EngineConfig, Refused, config_of
from kvproof.harness.contract.whole_engine_traits import WholeEngineTraits
from kvproof.harness.whole_engine.driver import RUNS, Driver
from kvproof.harness.whole_engine.raised import raised


class Job:
    """One engine after the other."""

    def __init__(
        self,
        start: Callable[[EngineConfig], Driver],
        traits: Callable[[], WholeEngineTraits],
    ) -> None:
        self._start, self._traits = start, traits
        self._driver: Driver | None = None
        self._at_start = ""
        """Why the engine did not start; empty: it did, or refused."""
        self._checks: Counter[str] = Counter()
        self._situations: Counter[str] = Counter()

    def call(self, verb: str, keywords: Mapping[str, Any]) -> Any:
        """Carry out one call."""
        return _CALLS[verb](self, **keywords)

    def traits(self) -> dict[str, Any]:
        """Return the engine's traits as JSON."""
        return asdict(self._traits())

    def open(self, *, config: Mapping[str, Any]) -> str:
        """Start an engine in place of the last one."""
        self.close()
        self._at_start = ""
        try:
            self._driver = self._start(config_of(config))
        except Refused as refused:
            return str(refused).splitlines()[0]
        except Exception as error:  # noqa: BLE001 - whatever an engine raises is its verdict
            self._at_start = raised(error)
            return ""
        self._checks, self._situations = Counter(), Counter()
        return ""

    def close(self) -> None:
        """Forget the last engine."""
        if self._driver is not None:
            self._driver.close()
        self._driver = None

    def go_on(self) -> list[Any] | None:
        """Continue after a known failure; return the next violation of the same step."""
        assert self._driver is not None, "open comes first"
        self._driver.go_on()
        return self._wrong(self._driver)

    @staticmethod
    def _wrong(driver: Driver) -> list[Any] | None:
        wrong = driver.findings.wrong
        return None if wrong is None else [wrong.property, wrong.sentence, dict(wrong.facts)]

    def timeline(self) -> dict[str, Any]:
        """Return requests, launches and transfers over the steps of the last history."""
        if self._at_start:
            return {}
        assert self._driver is not None, "open comes first"
        return self._driver.record()

    def apply(self, *, verb: str, keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out an operation; an engine that did not start fails in the first one."""
        if self._at_start:
            wrong = [RUNS, self._at_start, {}]
            return {"answer": "", "checks": {RUNS: 1}, "situations": {}, "wrong": wrong}
        assert self._driver is not None, "open comes first"
        answer = self._driver.apply(verb, keywords)
        findings = self._driver.findings
        found = {
            "answer": answer,
            "checks": dict(findings.checks - self._checks),
            "situations": dict(findings.situations - self._situations),
            "wrong": self._wrong(self._driver),
        }
        self._checks = Counter(findings.checks)
        self._situations = Counter(findings.situations)
        return found


_CALLS: dict[str, Callable[..., Any]] = {
    "traits": Job.traits,
    "open": Job.open,
    "apply": Job.apply,
    "go_on": Job.go_on,
    "timeline": Job.timeline,
}
