"""Each property of the part `system` sees the fault that it is there for."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import Phase, settings

from kvproof.suites.cache.budgets import BUDGETS
from kvproof.suites.part_machine import explore
from kvproof.suites.system.part import PART
from kvproof.suites.tests.planted import Fault, load, plant


class Planted(NamedTuple):
    """A bug in a module of the reference: `property` has to notice that `old` is `new`."""

    module: str
    story: str
    property: str
    old: str
    new: str
    config: dict[str, object] = {}  # noqa: RUF012 - read only
    """What every configuration has, so that the bug shows before something breaks down."""


FULL = {"kind": "full", "block_size": 2}
TIERS: dict[str, object] = {
    "groups": [FULL],
    "num_blocks": 20,
    "prefix_caching": True,
    "decode_interval": 0,
    "tiers": {"host": 100_000, "disk": 0, "patience": 2},
}
"""An engine that finds again whatever it has lost."""

FAULTS = (
    Planted(
        "holdings",
        "the right blocks of a hit in the wrong order",
        "cached_equals_uncached",
        "        request.table = node.table()\n",
        "        request.table = node.table()[::-1]\n",
        {"groups": [FULL], "num_blocks": 20, "prefix_caching": True, "tiers": None},
    ),
    Planted(
        "hits",
        "a prompt is looked up without its salt (vLLM #3263, #44701)",
        "cached_equals_uncached",
        "            request.namespace, request.tokens, request.segments, most",
        "            type(request.namespace)(), request.tokens, request.segments, most",
    ),
    Planted(
        "symbolic",
        "every placeholder of a span gets the same content",
        "cached_equals_uncached",
        "{position: mix(word, position - span.start) for position in inside}",
        "{position: mix(word, 0) for position in inside}",
    ),
    Planted(
        "local_blocks",
        "a hit needs only the last block of a window (vLLM: interrupted runs)",
        "cached_equals_uncached",
        "self._hole(node, self.rule.first_unit(units * unit), units)",
        "self._hole(node, max(self.rule.first_unit(units * unit), units - 1), units)",
        {"groups": [{"kind": "window", "block_size": 1, "size": 5}], "num_blocks": 16}
        | {"max_batch_tokens": 64, "num_drafts": 0},
    ),
    Planted(
        "block_table",
        "all kernel blocks of a block are its first one",
        "cached_equals_uncached",
        "np.arange(ratio, dtype=np.int32)",
        "np.zeros(ratio, dtype=np.int32)",
        {"groups": [{"kind": "full", "block_size": 4, "kernel_block_size": 2}], "num_blocks": 20},
    ),
    Planted(
        "holdings",
        "what is released is handed out while a step still writes it (vllm-ascend #14055)",
        "chunked_equals_whole",
        "        if self._steps.runs(request.last_step):\n            self.leaving",
        "        if False:\n            self.leaving",
        {"groups": [{"kind": "full", "block_size": 1}], "num_blocks": 24, "steps_in_flight": 2},
    ),
    Planted(
        "scheduler",
        "a token sampled before a preemption is appended after it (vLLM #38624)",
        "preempted_equals_undisturbed",
        "return self.request.status == RUNNING and self.request.admissions == self.admission",
        "return self.request.status == RUNNING",
        {"num_drafts": 0, "steps_in_flight": 3, "tiers": None},
    ),
    Planted(
        "symbolic",
        "every draft is accepted",
        "drafted_equals_undrafted",
        "        while accepted < work.drafts and drafts[accepted] == said[accepted]:\n",
        "        while accepted < len(drafts):\n",
    ),
    Planted(
        "symbolic",
        "the draft layers read only the last position of a step",
        "drafts_are_those_of_whole_draft_layers",
        "for position in range(self._work.start, stop):",
        "for position in range(stop - 1, stop):",
        {
            "groups": [
                {"kind": "full", "block_size": 2, "draft": True},
                {"kind": "full", "block_size": 1},
            ]
        }
        | {"num_blocks": 50, "num_drafts": 2},
    ),
    Planted(
        "symbolic",
        "a request is moved without its recurrent state",
        "moved_requests_are_whole",
        "        if place.state:\n            self.memory.write_state",
        "        if False:\n            self.memory.write_state",
    ),
    Planted(
        "routed",
        "the row of the token before stands for that of the last one",
        "expert_rows_equal_a_fresh_run",
        "request.last_row.astype(rows.dtype)",
        "(rows[-1:] if len(rows) else request.last_row.astype(rows.dtype))",
    ),
    Planted(
        "expert_marks",
        "only the last chunk of a prompt records its rows",
        "the_engine_reports_missing_expert_rows",
        "rows.get(scheduled.request.id)",
        "rows.get(scheduled.request.id) if stop >= scheduled.request.prompt else None",
    ),
    Planted(
        "request_queue",
        "an answer is one token too long",
        "answers_have_the_length_asked_for",
        "return len(self.tokens) >= self.prompt.most_tokens",
        "return len(self.tokens) > self.prompt.most_tokens",
    ),
    Planted(
        "scheduler",
        "a request that finds no room for its whole share never asks for less (vLLM #39734)",
        "something_runs_while_work_is_left",
        "while isinstance(answer, Refusal) and share > 1 and not self._victim(request):",
        "while False:",
        {
            "groups": [
                {"kind": "full", "block_size": 2},
                {"kind": "window", "block_size": 2, "size": 2},
            ]
        }
        | {"num_blocks": 9, "max_batch_tokens": 30},
    ),
    Planted(
        "request_queue",
        "whoever came last is served first",
        "waits_are_bounded",
        "heapq.heappush(self._heap, (request.rank, request))",
        "heapq.heappush(self._heap, (-request.rank, request))",
    ),
    Planted(
        "scheduler",
        "tokens that are hit are charged to the budget (LMDeploy #4695)",
        "no_budget_is_left_while_somebody_waits",
        "left -= answer.stop - answer.start",
        "left -= answer.stop",
    ),
    Planted(
        "shares",
        "who gets the last tokens of a step depends on addresses",
        "decisions_repeat",
        "return request.last_step, request.rank",
        "return request.last_step, id(request) * 7919 % 1009",
        {"twin": True, "max_batch_tokens": 2, "max_requests": 5, "tiers": None},
    ),
    Planted(
        "scheduler",
        "a cancelled request keeps its blocks if a step of it is in flight",
        "cancelling_is_safe",
        "        if running:\n",
        "        if running and not (event == 'cancel' and request.in_flight):\n",
    ),
    Planted(
        "cache_manager",
        "a refused admission is counted as a query",
        "refused_admissions_leave_no_trace",
        "        if isinstance(stop, Refusal):\n            return stop\n\n        start",
        "        if isinstance(stop, Refusal):\n"
        "            self.statistics.count(request.prompt, 0)\n"
        "            return stop\n\n        start",
    ),
    Planted(
        "scheduler",
        "the last token of an answer is counted, although it is never computed",
        "requests_that_never_fit_are_refused_at_arrival",
        "prompt.most_tokens - 1",
        "prompt.most_tokens",
    ),
    Planted(
        "scheduler",
        "every admission gets the whole budget of the step",
        "options_reach_their_component",
        "answer = self._ask(request, left)",
        "answer = self._ask(request, self.config.max_batch_tokens)",
    ),
    Planted(
        "scheduler",
        "a finished request keeps its blocks",
        "the_pool_is_empty_in_the_end",
        "        self.cache.release(request.id)\n",
        "        if request.status != 'finished':\n            self.cache.release(request.id)\n",
    ),
    Planted(
        "tiers.tiers",
        "what is evicted is copied out when others have its blocks",
        "what_comes_back_is_what_was_computed",
        "        content = self._mover.save(",
        "        moved, self.late = getattr(self, 'late', []), moved\n"
        "        content = self._mover.save(",
        TIERS,
    ),
    Planted(
        "tiers.object_key",
        "a key does not depend on the namespace",
        "what_comes_back_is_what_was_computed",
        "encode(self._fixed, *self._epoch, *namespace)",
        "encode(self._fixed, *self._epoch)",
        TIERS,
    ),
    Planted(
        "tiers.object_key",
        "a key does not depend on the epoch, and the disk outlives a reset",
        "what_comes_back_is_what_was_computed",
        "encode(self._fixed, *self._epoch, *namespace)",
        "encode(self._fixed, *namespace)",
        TIERS | {"tiers": {"host": 64, "disk": 100_000, "patience": 2}},
    ),
    Planted(
        "tiers.object_key",
        "a key does not depend on media",
        "what_comes_back_is_what_was_computed",
        "encode(before, little_endian(tokens), *fields)",
        "encode(before, little_endian(tokens))",
        TIERS | {"media": True},
    ),
    Planted(
        "tiers.nodes",
        "a state is stored as that after one unit less",
        "what_comes_back_is_what_was_computed",
        "yield self._named(links[mark - 1], object_key.STATE, checkpoint.ids)",
        "yield self._named(links[mark - 2], object_key.STATE, checkpoint.ids)",
        TIERS | {"groups": [FULL, {"kind": "state", "block_size": 2}]},
    ),
    Planted(
        "tiers.runs",
        "blocks of a window come back in the wrong order",
        "what_comes_back_is_what_was_computed",
        "for unit in range(begin, run.lo):",
        "for unit in reversed(range(begin, run.lo)):",
        TIERS | {"groups": [FULL, {"kind": "window", "block_size": 2, "size": 7}]},
    ),
    Planted(
        "tiers.nodes",
        "all units of a node are stored with the expert rows of its first",
        "expert_rows_equal_a_fresh_run",
        "data = rows[number * unit : (number + 1) * unit].tobytes()",
        "data = rows[:unit].tobytes()",
        TIERS | {"experts": True},
    ),
    Planted(
        "tiers.waiting",
        "an object that did not come is taken for zeros",
        "late_or_failed_loads_cost_no_correctness",
        "views = {n.key: v for n, v in came if v is not None and v.nbytes == size(n.part)}",
        "views = {n.key: v or memoryview(bytes(size(n.part))) for n, v in came}",
        TIERS,
    ),
    Planted(
        "tiers.tiers",
        "room is made before everything is here",
        "waiting_for_objects_changes_nothing",
        "                return Refusal(LOADING,",
        "                self._residency.evict(1)\n                return Refusal(LOADING,",
        TIERS,
    ),
    Planted(
        "tiers.load",
        "what comes back takes the room of the first step",
        "what_comes_back_is_hit_by_who_asked",
        "return loaded + self._first_step(request, plan, compute) <= available",
        "return loaded <= available",
        TIERS | {"num_blocks": 9, "max_batch_tokens": 30},
    ),
    Planted(
        "tiers.plan",
        "the first unit of a window does not come back with the others",
        "what_comes_back_is_hit_by_who_asked",
        "        return first, length\n",
        "        return min(first + 1, length), length\n",
        TIERS | {"groups": [FULL, {"kind": "window", "block_size": 2, "size": 7}]},
    ),
    Planted(
        "tiers.tiers",
        "a request waits for its objects as long as it takes",
        "waits_are_bounded",
        "if failed is None and waiting.polls <= self.patience:",
        "if failed is None and not setattr(waiting, 'polls', 0):",
        TIERS | {"tiers": {"host": 100_000, "disk": 0, "patience": 2}},
    ),
    Planted(
        "tiers.waiting",
        "leases are not released",
        "the_pool_is_empty_in_the_end",
        "            lease.release()\n",
        "            lease.views\n",
        TIERS,
    ),
)

BUDGET = settings(BUDGETS["pr"], phases=[Phase.generate])


def _config(draw, fixed):
    """Other groups than were drawn may not have partial blocks."""
    drawn = PART.draw_config(draw)
    return drawn | ({"partial_blocks": False} if "groups" in fixed else {}) | fixed


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.story)
def test_a_planted_fault_is_seen_by_its_property(fault):
    name = f"system_{FAULTS.index(fault)}"
    plant(name, Fault(f"reference.{fault.module}", fault.old, fault.new))
    broken = load(name, "suites.system.part").PART
    broken = broken._replace(draw_config=lambda draw: _config(draw, fault.config), themes=())
    others = {prop.name for prop in PART.properties} - {fault.property}
    seen = explore(broken, BUDGET, tolerate=others)
    assert seen.violation is not None, (seen.died, seen.tolerated)
    assert seen.violation.property == fault.property


def test_every_property_has_its_fault():
    assert {fault.property for fault in FAULTS} == {prop.name for prop in PART.properties}
