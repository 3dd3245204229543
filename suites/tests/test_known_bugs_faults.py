"""Known bugs, planted into the reference: the property that the table names finds each alone."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import Phase, settings

from kvproof.harness.handles import InProcessHandle
from kvproof.suites import known_bugs, part_machine
from kvproof.suites.cache import explore as cache_explore
from kvproof.suites.cache.budgets import BUDGETS
from kvproof.suites.exploration import Exploration
from kvproof.suites.levels import catalogue
from kvproof.suites.property import Level
from kvproof.suites.tests import planted
from kvproof.suites.tests.planted import Fault

QUICK = settings(BUDGETS["pr"], phases=(Phase.generate,))


class Mistake(NamedTuple):
    """The suite and the property that must find it."""

    suite: str
    property: str
    fault: Fault
    level: Level = "full"


MISTAKES = {
    # ids as in suites/known_bugs
    "vllm-6": Mistake(
        "cache",
        "namespaces_are_separate",
        Fault(
            "reference.requests",
            "        self.namespace = namespace\n",
            "        untagged = [name for name in namespace if name is not None]\n"
            "        self.namespace = type(namespace)(*untagged)\n",
        ),
        level="core",
    ),
    "vllm-20": Mistake(
        "cache",
        "blocks_behind_a_window_outlive_running_steps",
        Fault(
            "reference.cache_manager",
            "leave_local(request, stop)",
            "leave_local(request, request.computed)",
        ),
    ),
    "sglang-14": Mistake(
        "cache",
        "blocks_behind_a_window_are_returned",
        Fault(
            "reference.cache_manager",
            "            if request.local and not request.released:\n",
            "            if request.local and request.released:\n",
        ),
    ),
    "vllm-30": Mistake(
        "cache",
        "draft_groups_cost_one_unit",
        Fault(
            "reference.hits",
            "last = max(0, limit - self._unit)",
            "last = limit",
        ),
    ),
    "vllm-31": Mistake(
        "hits",
        "the_hit_is_the_longest_valid_length",
        Fault("reference.hit_length", "floor(min(length + unit, limit))", "floor(length)"),
    ),
    "vllm-34c": Mistake(
        "cache",
        "states_are_of_exactly_the_tokens_read",
        Fault("reference.running_states", "rows.pop(accepted)", "rows.pop()"),
    ),
    "sglang-32": Mistake(
        "cache",
        "a_recurrent_hit_needs_a_checkpoint",
        Fault(
            "reference.state_saves",
            "        border = last // unit * unit\n",
            "        border = last\n",
        ),
    ),
    "vllm-51": Mistake(
        "cache",
        "kernel_tables_address_their_blocks",
        Fault(
            "reference.cache_manager",
            "config.kernel_ratio) for g, config in groups]",
            "self.config.layout.groups[0].kernel_ratio) for g, _ in groups]",
        ),
    ),
    "lmdeploy-19": Mistake(
        "media",
        "clamps_reach_a_fixpoint",
        Fault(
            "reference.hit_length",
            "        if length == before:\n            return length\n\n\nclass Reduction",
            "        return length\n\n\nclass Reduction",
        ),
    ),
    "lmdeploy-20": Mistake(
        "media",
        "the_chunk_limit_grows_for_this_turn_only",
        Fault("reference.media", " for span in spans if span.start >= turn", " for span in spans"),
    ),
    "lmdeploy-22": Mistake(
        "states",
        "reservations_end_with_their_request",
        Fault("reference.state_cache", "[*self._reserved[request]]", "()"),
    ),
    "lmdeploy-24": Mistake(
        "states",
        "decode_checkpoints_go_when_their_successor_is_certain",
        Fault("reference.state_cache", "= self._replaceable.get(request)\n", "= None\n"),
    ),
    "lmdeploy-28": Mistake(
        "states",
        "a_running_request_gets_its_row_back",
        Fault("reference.running_states", "ids = self.rows.get(request)\n", "ids = None\n"),
    ),
    "lmdeploy-34": Mistake(
        "system",
        "no_budget_is_left_while_somebody_waits",
        Fault("reference.scheduler", "left -= answer.stop - answer.start", "left -= answer.stop"),
    ),
    "lmdeploy-35": Mistake(
        "system",
        "something_runs_while_work_is_left",
        Fault(
            "reference.request_queue",
            "len(self.drafts) if self.left else 0",
            "len(self.drafts) if self.left == 1 else 0",
        ),
    ),
    "lmdeploy-36": Mistake(
        "system",
        "waits_are_bounded",
        Fault("reference.request_queue", "(request.rank, request))", "(-request.rank, request))"),
    ),
    "vllm-26": Mistake(
        "plan",
        "the_returned_length_fits_and_one_more_does_not",
        Fault(
            "reference.plan_sizes",
            "longest=longest_length(plan, plan.usable),",
            "longest=longest_length(plan, plan.num_blocks),",
        ),
    ),
    "vllm-63": Mistake(
        "experts",
        "returned_expert_rows_are_right",
        Fault("reference.expert_history", "fill(owner, first + begin,", "fill(owner, begin,"),
    ),
}


def explore(name: str, mistake: Mistake) -> Exploration:
    planted.plant(name, mistake.fault)
    properties = {prop.name for prop in catalogue("full")[mistake.suite]}
    others = properties - {mistake.property}
    if mistake.suite == "cache":
        make = planted.load(name, "harness.adapters.reference").make_target
        handle = InProcessHandle(f"reference with {name}", make)
        return cache_explore.explore(handle, QUICK, level=mistake.level, tolerate=others)
    part = planted.load(name, f"suites.{mistake.suite}.part").PART
    return part_machine.explore(part, QUICK, tolerate=others)


def test_the_table_names_the_property_that_has_to_find_it():
    bugs = {bug.id: bug for engine in known_bugs.load() for bug in engine.bug}
    for name, mistake in MISTAKES.items():
        assert mistake.property in bugs[name].properties, name


@pytest.mark.parametrize("name", MISTAKES)
def test_the_planted_bug_falls_to_its_property(name):
    mistake = MISTAKES[name]
    seen = explore(name.replace("-", "_"), mistake)
    assert seen.violation is not None, f"{name} survived {seen.test_cases} histories: {seen.died}"
    assert seen.violation.property == mistake.property
