"""Budgets of exploration. They keep their values in CI, where Hypothesis would change its own."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.database import ExampleDatabase

_SLOW_TARGETS = (
    HealthCheck.too_slow,  # a worker in another process answers in milliseconds
    HealthCheck.data_too_large,  # long histories are intended
    HealthCheck.large_base_example,  # Hypothesis ends a history in time if it has no more room
    HealthCheck.filter_too_much,  # rules of an empty target are disabled by preconditions
)


def _budget(cases: int, steps: int, *, derandomize: bool) -> settings:
    return settings(
        parent=settings.get_profile("default"),
        max_examples=cases,
        stateful_step_count=steps,
        derandomize=derandomize,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=_SLOW_TARGETS,
        phases=(Phase.reuse, Phase.generate, Phase.shrink),
        verbosity=Verbosity.quiet,
    )


BUDGETS = {
    "pr": _budget(200, 50, derandomize=True),
    "nightly": _budget(2000, 200, derandomize=False),
    "debug": _budget(25, 30, derandomize=True),
}
"""Name -> settings: test cases x operations, and whether every run draws the same."""


def seeded(budget: settings, database: ExampleDatabase | None) -> settings:
    """Return a budget with fresh draws that keeps failing examples in `database`."""
    return settings(budget, derandomize=False, database=database)
