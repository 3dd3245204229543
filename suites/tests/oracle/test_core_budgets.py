"""Budgets draw what they say, the same in CI as anywhere, and the same every time."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import InMemoryExampleDatabase

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.suites.framework.budgets import BUDGETS, seeded
from kvproof.suites.runner.levels import suites
from kvproof.suites.tests.framework.suite_kit import explore_target as explore
from kvproof.suites.tests.patience import LONG


def reference():
    return InProcessHandle("reference", make_target)


TOLD = """
import json
from kvproof.suites.framework.budgets import BUDGETS
print(json.dumps({name: {
    "cases": budget.max_examples,
    "steps": budget.stateful_step_count,
    "derandomize": budget.derandomize,
    "database": repr(budget.database),
    "deadline": repr(budget.deadline),
    "blob": budget.print_blob,
    "health": sorted(check.name for check in budget.suppress_health_check),
    "phases": sorted(phase.name for phase in budget.phases),
    "verbosity": budget.verbosity.name,
} for name, budget in BUDGETS.items()}))
"""

CI_VARIABLES = ("CI", "GITHUB_ACTIONS", "TF_BUILD", "GITLAB_CI", "BUILDKITE", "TEAMCITY_VERSION")


def reported(before="", **environment):
    plain = {key: value for key, value in os.environ.items() if key not in CI_VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", before + TOLD],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=True,
        env=plain | environment,
    )
    return json.loads(done.stdout)


def test_budgets_keep_their_values_in_ci():
    plain, ci = reported(), reported(CI="1", GITHUB_ACTIONS="true")
    assert plain == ci
    assert {name: (b["cases"], b["steps"], b["derandomize"]) for name, b in ci.items()} == {
        "pr": (200, 50, True),
        "nightly": (2000, 200, False),
        "debug": (25, 30, True),
    }
    for budget in ci.values():
        assert (budget["database"], budget["deadline"]) == ("None", "None")


ODD = """
from hypothesis import Phase, settings
settings.register_profile(
    "odd", max_examples=3, stateful_step_count=2, derandomize=True, deadline=1, print_blob=True,
    phases=[Phase.generate], suppress_health_check=[],
)
settings.load_profile("odd")
"""


def test_budgets_take_nothing_from_the_profile_in_force():
    assert reported(ODD) == reported()


def test_budgets_shrink_but_neither_explain_nor_give_up_on_slow_targets():
    for budget in BUDGETS.values():
        assert Phase.shrink in budget.phases
        assert Phase.generate in budget.phases
        assert Phase.explain not in budget.phases
        assert HealthCheck.too_slow in budget.suppress_health_check


@pytest.mark.slow(reason="explores until every situation occurs")
def test_the_longest_histories_are_drawn():
    # Hypothesis refuses to draw a second history where the simplest one is too long for it
    (plan,) = (suite for suite in suites(reference(), "full") if suite.name == "plan")
    seen = plan.explore(settings(BUDGETS["nightly"], max_examples=8), seed=0)
    assert (seen.violation, seen.broken) == (None, None)
    assert max(seen.operations.values()) > 200


def test_a_seeded_budget_draws_anew_and_keeps_the_rest():
    database = InMemoryExampleDatabase()
    budget = seeded(BUDGETS["pr"], database)
    assert (budget.derandomize, budget.database) == (False, database)
    assert (budget.max_examples, budget.stateful_step_count) == (200, 50)
    assert BUDGETS["pr"].derandomize, "budgets themselves never change"


class Told:
    """Opens reference targets and writes down what each is asked."""

    def __init__(self):
        self.histories = []

    def handle(self):
        return InProcessHandle("reported", self._make)

    def _make(self, config):
        target, history = make_target(config), [config]
        self.histories.append(history)
        for verb in ("admit", "extend", "complete", "finish", "cancel", "preempt", "evict", "pin"):
            setattr(target, verb, self._telling(history, verb, getattr(target, verb)))
        return target

    def _telling(self, history, verb, call):
        def reported(*arguments, **keywords):
            history.append((verb, arguments, keywords))
            return call(*arguments, **keywords)

        return reported


def drawn(budget, seed=None):
    reported = Told()
    seen = explore(reported.handle(), budget, seed=seed)
    assert seen.violation is None
    return reported.histories, seen


@pytest.mark.slow(reason="explores until every situation occurs")
def test_two_runs_at_one_budget_draw_the_same_histories():
    one, first = drawn(BUDGETS["debug"])
    other, second = drawn(BUDGETS["debug"])
    assert one == other
    assert (first.operations, first.situations) == (second.operations, second.situations)
    assert first.checks == second.checks
    assert len(one) > 20
    assert set(first.operations) >= {"admit", "extend", "complete", "finish", "evict", "reset"}


def test_a_seed_chooses_the_histories():
    budget = seeded(settings(BUDGETS["debug"], max_examples=8), None)
    runs = [drawn(budget, seed)[0] for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
