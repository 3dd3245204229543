"""A plan, checked once when it is made, then queried for requests, bytes and states."""

from __future__ import annotations

from typing import Any

from kvproof.reference.planner import planner
from kvproof.reference.planner.capacity import capacity
from kvproof.reference.planner.layer_spec import PlanError
from kvproof.reference.planner.plan import Plan
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.planner import judge, questions
from kvproof.suites.reference.planner.entries import judge_entries, judge_readers, judge_scales
from kvproof.suites.reference.planner.judge import situations
from kvproof.suites.reference.planner.models import Case, model_of, settings_of

_QUESTIONS: dict[str, Any] = {
    "request": questions.ask_request,
    "bytes": questions.ask_bytes,
    "state": questions.ask_state,
    "ranks": questions.ask_ranks,
}


class PlannerMachine:
    """Makes a plan of a configuration; without one only the refusal is checked."""

    def __init__(self, config: Config, coverage: Coverage) -> None:
        self._coverage = coverage
        self.case, self.plan = self._planned(config)

    def apply(self, verb: str, **arguments: Any) -> object:
        """Plan something else, or query the plan; ignored without a plan."""
        if verb == "plan":
            self.case, self.plan = self._planned(arguments["config"])
            return self.plan and [(g.kind, len(g.layers), g.block_size) for g in self.plan.groups]
        return self.plan and _QUESTIONS[verb](self.case, self.plan, **arguments)

    def _planned(self, config: Config) -> tuple[Case, Plan | None]:
        case = Case(model_of(config), settings_of(config), self._coverage)
        try:
            plan = planner.make_plan(case.model, case.settings)
        except PlanError as error:
            judge.judge_refusal(case, error)
            judge.judge_refused_fallback(case, error)
            return case, None
        for situation in situations(case.model, plan):
            self._coverage.event(situation)
        judge.judge_fallback(case, plan)
        judge.judge_groups(case, plan)
        judge.judge_workers(case, plan)
        judge.judge_layout(case, plan)
        judge_entries(case, plan)
        judge_readers(case, plan)
        judge_scales(case, plan)
        judge.judge_json(case, plan)
        judge.judge_sizes(case, plan, capacity(plan))
        judge.judge_choice(case, plan)
        return case, plan
