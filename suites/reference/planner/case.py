"""A configuration under test: a model, its settings, and the counter of checks."""

from __future__ import annotations

from typing import NamedTuple

from kvproof.reference.planner.layer_spec import ModelSpec
from kvproof.reference.planner.plan import PlanSettings
from kvproof.suites.framework.coverage import Coverage


class Case(NamedTuple):
    """One configuration."""

    model: ModelSpec
    settings: PlanSettings
    coverage: Coverage

    def check(self, name: str, ok: object, sentence: str) -> None:
        self.coverage.check(name, ok, lambda: f"{sentence}; planned for {self.settings}")
