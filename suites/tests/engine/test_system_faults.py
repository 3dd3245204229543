"""Each property of the suite `system` sees the fault that it is there for."""

from __future__ import annotations

import pytest

from kvproof.suites.faults.catalogue import find, of_suite
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.reference.engine.strategies import SUITE
from kvproof.suites.tests.fast_share import one_in
from kvproof.suites.tests.framework.suite_faults import (
    UNSHRUNK,
    Planted,
    broken,
    fallen,
    from_catalogue,
)

FULL = {"kind": "full", "block_size": 2}
TIERS: dict[str, object] = {
    "groups": [FULL],
    "num_blocks": 20,
    "prefix_caching": True,
    "decode_interval": 0,
    "tiers": {"host": 100_000, "disk": 0, "patience": 2},
}
"""An engine that finds again whatever it has lost."""

CONFIGS: dict[str, dict[str, object]] = {
    "hit_in_wrong_order": {
        "groups": [FULL],
        "num_blocks": 20,
        "prefix_caching": True,
        "tiers": None,
    },
    "only_last_window_block_needed": {
        "groups": [{"kind": "window", "block_size": 1, "size": 5}],
        "num_blocks": 16,
        "max_batch_tokens": 64,
        "num_drafts": 0,
    },
    "first_kernel_block_repeated": {
        "groups": [{"kind": "full", "block_size": 4, "kernel_block_size": 2}],
        "num_blocks": 20,
    },
    "released_while_written": {
        "groups": [{"kind": "full", "block_size": 1}],
        "num_blocks": 24,
        "steps_in_flight": 2,
    },
    "sample_survives_preemption": {"num_drafts": 0, "steps_in_flight": 3, "tiers": None},
    "draft_layers_read_last_position": {
        "groups": [
            {"kind": "full", "block_size": 2, "draft": True},
            {"kind": "full", "block_size": 1},
        ],
        "num_blocks": 50,
        "num_drafts": 2,
    },
    "whole_share_or_nothing": {
        "groups": [
            {"kind": "full", "block_size": 2},
            {"kind": "window", "block_size": 2, "size": 2},
        ],
        "num_blocks": 9,
        "max_batch_tokens": 30,
    },
    "decisions_by_address": {
        "twin": True,
        "max_batch_tokens": 8,
        "max_requests": 5,
        "tiers": None,
    },
    "copied_out_too_late": TIERS,
    "state_one_unit_early": TIERS | {"groups": [FULL, {"kind": "state", "block_size": 2}]},
    "window_comes_back_reversed": TIERS
    | {"groups": [FULL, {"kind": "window", "block_size": 2, "size": 7}]},
    "expert_rows_of_first_unit": TIERS | {"experts": True},
    "failed_load_is_zeros": TIERS,
    "room_made_too_early": TIERS,
    "waits_without_end": TIERS,
}
"""Fault of the catalogue -> what every configuration has, so that this budget finds it."""
DISK_OUTLIVES_A_RESET = TIERS | {"tiers": {"host": 64, "disk": 100_000, "patience": 2}}

FAULTS = (
    *(from_catalogue(fault, config=CONFIGS.get(fault.name, {})) for fault in of_suite("system")),
    from_catalogue(
        find("object_key_without_namespace"),
        property="what_comes_back_is_what_was_computed",
        config=TIERS,
    ),
    from_catalogue(
        find("object_key_without_epoch"),
        property="what_comes_back_is_what_was_computed",
        config=DISK_OUTLIVES_A_RESET,
    ),
    Planted(
        "a prompt is looked up without its salt (vLLM #3263, #44701)",
        "cached_equals_uncached",
        "cache.hit_length",
        "request.namespace, bytes(request.tokens), request.segments, most // self._unit",
        "type(request.namespace)(), bytes(request.tokens), request.segments, most // self._unit",
    ),
    Planted(
        "only the last chunk of a prompt records its rows",
        "the_engine_reports_missing_expert_rows",
        "cache.routed_experts",
        "rows.get(scheduled.request.id)",
        "rows.get(scheduled.request.id) if stop >= scheduled.request.prompt else None",
    ),
    Planted(
        "an answer is one token too long",
        "answers_have_the_length_asked_for",
        "engine.request_queue",
        "return len(self.tokens) >= self.prompt.most_tokens",
        "return len(self.tokens) > self.prompt.most_tokens",
    ),
    Planted(
        "the last request is served first",
        "waits_are_bounded",
        "engine.request_queue",
        "heapq.heappush(self._heap, (request.rank, request))",
        "heapq.heappush(self._heap, (-request.rank, request))",
    ),
    Planted(
        "a finished request keeps its blocks",
        "the_pool_is_empty_in_the_end",
        "engine.scheduler",
        "        self.cache.release(request.id)\n",
        "        if request.status != 'finished':\n            self.cache.release(request.id)\n",
    ),
    Planted(
        "a key does not depend on media",
        "what_comes_back_is_what_was_computed",
        "core.identity",
        "encode(parent, little_endian(tokens), *fields)",
        "encode(parent, little_endian(tokens))",
        TIERS | {"media": True},
    ),
    Planted(
        "what comes back takes the room of the first step",
        "refused_admissions_leave_no_trace",
        "tiers.load",
        "return loaded + self._first_step(request, plan, compute) <= available",
        "return loaded <= available",
        TIERS | {"num_blocks": 9, "max_batch_tokens": 30},
    ),
    Planted(
        "the first unit of a window does not come back with the others",
        "loaded_objects_are_hit_by_their_request",
        "tiers.plan",
        "        return first, length\n",
        "        return min(first + 1, length), length\n",
        TIERS | {"groups": [FULL, {"kind": "window", "block_size": 2, "size": 7}]},
    ),
    Planted(
        "the oldest compute in every step",
        "running_requests_take_turns",
        "engine.scheduler",
        "key=_waited_longest)]",
        "key=arrival_order)]",
        {"max_batch_tokens": 2, "max_requests": 5},
    ),
    Planted(
        "a step that ends still counts",
        "steps_in_flight_are_counted_once",
        "engine.request_queue",
        "        self.in_flight -= 1\n",
        "        self.in_flight -= self.drafting\n",
        {"num_drafts": 0},
    ),
    Planted(
        "a preempted request forgets its answer so far",
        "preempted_equals_undisturbed",
        "engine.scheduler",
        '        request.move("preempt")\n',
        '        request.move("preempt")\n'
        "        start = len(request.prompt.tokens)\n"
        "        request.tokens[start:] = [1] * (len(request.tokens) - start)\n",
        {"num_drafts": 0, "tiers": None},
    ),
    Planted(
        "the rolling rate is of one request less",
        "rolling_hit_rates_are_of_the_last_requests",
        "core.hit_statistics",
        "deque(maxlen=window)",
        "deque(maxlen=window - 1)",
        {"prefix_caching": True, "max_requests": 2},
    ),
    Planted(
        "leases are not released",
        "the_pool_is_empty_in_the_end",
        "tiers.waiting",
        "            lease.release()\n",
        "            lease.views\n",
        TIERS,
    ),
)


def _config(draw, fixed):
    """Other groups than were drawn may not have partial blocks."""
    drawn = SUITE.draw_config(draw)
    return drawn | ({"partial_blocks": False} if "groups" in fixed else {}) | fixed


RARE = ("object_key_without_epoch",)
"""4 s of CPU time until it is found."""


@pytest.mark.parametrize(
    "fault",
    one_in(4, FAULTS, reason="finds planted faults by exploration", but=RARE),
    ids=lambda fault: fault.story,
)
def test_a_planted_fault_is_seen_by_its_property(fault):
    copy = broken(SUITE, FAULTS.index(fault), fault)
    copy = copy._replace(draw_config=lambda draw: _config(draw, fault.config), profiles=())
    others = {prop.name for prop in SUITE.properties} - {fault.property}
    seen = fallen(lambda seed: explore(copy, UNSHRUNK, seed=seed, tolerate=others))
    assert seen.violation is not None, (seen.died, seen.tolerated)
    assert seen.violation.property == fault.property


def test_every_property_has_its_fault():
    assert {fault.property for fault in FAULTS} == {prop.name for prop in SUITE.properties}
