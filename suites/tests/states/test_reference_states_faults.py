"""Each property of the suite `states` sees the fault that it is there for."""

from __future__ import annotations

import pytest

from kvproof.suites.reference.recurrent_states.strategies import SUITE
from kvproof.suites.tests.fast_share import one_in
from kvproof.suites.tests.framework.suite_faults import Planted, catalogued, falls

FAULTS = (
    *catalogued("states"),
    Planted(
        "a reservation can be restored from before anything was saved",
        "forbidden_moves_raise",
        "core.checkpoint",
        '        (READY, "pin"): PINNED,\n',
        '        (READY, "pin"): PINNED,\n        (RESERVED, "pin"): PINNED,\n',
    ),
    Planted(
        "only a checkpoint that is pinned already can be restored from",
        "allowed_moves_are_made",
        "core.checkpoint",
        '        (READY, "pin"): PINNED,\n',
        "",
    ),
    Planted(
        "saves run from the checkpoint to the request",
        "restores_come_before_saves",
        "states.batch_copies",
        "zip(running, save, strict=True) if any(copy[1])",
        "zip(save, running, strict=True) if any(copy[0])",
    ),
    Planted(
        "one request more than allowed runs (LMDeploy #4691)",
        "requests_wait_only_for_pinned_checkpoints",
        "states.state_slots",
        "len(self.rows) < self.most:",
        "len(self.rows) <= self.most:",
    ),
    Planted(
        "a checkpoint that was just used goes first",
        "the_least_recent_checkpoint_goes",
        "states.state_cache",
        "            self._ready[checkpoint] = None\n",
        "            self._ready[checkpoint] = None\n"
        "            self._ready.move_to_end(checkpoint, last=False)\n",
    ),
    Planted(
        "decode checkpoints pile up",
        "one_replaceable_checkpoint_per_request",
        "states.state_cache",
        "            if old.status == READY:\n                self._evict(old)\n",
        "",
    ),
    Planted(
        "a step of several tokens runs over the interval (SGLang: tracking degrades)",
        "decode_states_keep_their_interval",
        "cache.state_steps",
        "multiple = stop // interval * interval",
        "multiple = stop if stop % interval == 0 else 0",
    ),
    Planted(
        "every unit border becomes a checkpoint (vLLM, mode `all`)",
        "saves_are_bounded",
        "cache.state_steps",
        "            saved.append(border)",
        "            saved.extend(range(start // unit * unit + unit, border + 1, unit))",
    ),
    Planted(
        "after a verification the state without any draft runs on (vLLM, rollback)",
        "rejected_drafts_leave_no_rows",
        "states.state_slots",
        "= rows.pop(accepted)",
        "= rows.pop(0)",
    ),
)


@pytest.mark.parametrize(
    "fault",
    one_in(4, FAULTS, reason="finds planted faults by exploration"),
    ids=lambda fault: fault.story,
)
def test_a_planted_fault_is_seen_by_its_property(fault):
    falls(SUITE, FAULTS.index(fault), fault)


def test_every_property_has_its_fault():
    assert {fault.property for fault in FAULTS} == {prop.name for prop in SUITE.properties}
