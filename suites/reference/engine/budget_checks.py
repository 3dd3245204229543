"""Checks that the remaining budget of a step goes to waiting requests (C1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.engine.properties import SHARED_STEP


class BudgetChecks:
    """Checks an engine's scheduler after each step."""

    def __init__(self, engine: Any, config: Config, coverage: Coverage) -> None:
        self._scheduler = scheduler = engine.scheduler
        self._config, self._coverage = config, coverage
        schedule = scheduler.schedule

        def judged() -> Any:
            known = len(scheduler.decisions)
            planned = schedule()
            self._judge(scheduler.decisions[known:])
            return planned

        scheduler.schedule = judged

    def _judge(self, decisions: Sequence[Any]) -> None:
        verbs = [decision.verb for decision in decisions]
        computed = [d.detail[1] - d.detail[0] for d in decisions if d.verb == "compute"]
        left = self._config["max_batch_tokens"] - sum(computed)
        waiting = self._scheduler.queue.head()
        room = len(self._scheduler.running) < self._config["max_requests"]
        self._coverage.check(
            "token_budget_is_used_while_requests_wait",
            left <= 0 or waiting is None or not room or {"wait", "preempt"} & {*verbs},
            lambda: f"a step computes {computed}, {left} tokens are left, {waiting.id} waits",
        )
        hits = [d.detail[0] for d in decisions if d.verb == "admit"]
        self._coverage.event(SHARED_STEP, any(hits[:-1]))
