"""The host's half of a history: sends operations to the engine and receives the verdicts."""

from __future__ import annotations

from typing import Any

import msgspec

from kvproof.harness.contract.whole_engine import EngineConfig, config_of
from kvproof.harness.contract.whole_engine_traits import WholeEngineTraits, check_names
from kvproof.harness.records.timeline import Timeline
from kvproof.suites.framework.component_suite import Config, RemoteCalls
from kvproof.suites.framework.coverage import Coverage


class EngineMachine:
    def __init__(
        self, ask: RemoteCalls, traits: WholeEngineTraits, config: Config, coverage: Coverage
    ) -> None:
        check_names(traits, config_of(config["engine"]))
        self._ask = ask
        self._coverage = coverage
        self.features = frozenset(config.get("features", ()))
        self.block_size: int = config["engine"].get("block_size", EngineConfig.block_size)
        self.drafts: int = (config["engine"].get("drafts") or {}).get("count", 0)
        self.submitted: list[str] = []
        self.since_drain = 0
        (self.refused,) = ask(("open", {"config": config["engine"]}))
        coverage.event("the engine refuses a configuration", self.refused)
        if self.refused:
            coverage.row = {}

    def apply(self, verb: str, /, *_: Any, **arguments: Any) -> str:
        """Run an operation, count its checks and situations, raise its violation."""
        if self.refused:
            return f"the engine refuses the configuration: {self.refused}"
        if verb == "submit" and arguments["id"] not in self.submitted:
            self.submitted.append(arguments["id"])
        self.since_drain = 0 if verb == "drain" else self.since_drain + 1
        (seen,) = self._ask(("apply", {"verb": verb, "keywords": arguments}))
        self._coverage.checks.update(seen["checks"])
        self._coverage.situations.update(seen["situations"])
        wrong = seen["wrong"]
        while wrong:
            name, sentence, facts = wrong
            self._coverage.check(name, False, sentence.__str__, facts=facts)  # noqa: FBT003 - a condition
            (wrong,) = self._ask(("go_on", {}))  # it is known
        return str(seen["answer"])

    def timeline(self) -> Timeline | None:
        """Return which request ran when until now; None: the engine did not start."""
        (seen,) = self._ask(("timeline", {}))
        return msgspec.convert(seen, Timeline) if seen else None
