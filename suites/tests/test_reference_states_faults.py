"""Each property of the part `states` sees the fault that it is there for."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import Phase, settings

from kvproof.suites.cache.budgets import BUDGETS
from kvproof.suites.part_machine import explore
from kvproof.suites.states.part import PART
from kvproof.suites.tests.planted import Fault, load, plant


class Planted(NamedTuple):
    """A bug in a module of the reference: `property` has to notice that `old` is `new`."""

    module: str
    story: str
    property: str
    old: str
    new: str


FAULTS = (
    Planted(
        "state_cache",
        "freeing a request leaves its reservation (LMDeploy #4618, 90ddc95da)",
        "reservations_end_with_their_request",
        "            for checkpoint in [*self._reserved[request]]:\n"
        "                self.discard(checkpoint)\n",
        "            pass\n",
    ),
    Planted(
        "state_cache",
        "freeing a request leaves the pin of its restore (LMDeploy #4618, 90ddc95da)",
        "restores_end_with_their_request",
        "        if request in self._restores:\n            self.unpin_restore(request)\n",
        "",
    ),
    Planted(
        "checkpoints",
        "a reservation can be restored from before anything was saved",
        "forbidden_moves_raise",
        '        (READY, "pin"): PINNED,\n',
        '        (READY, "pin"): PINNED,\n        (RESERVED, "pin"): PINNED,\n',
    ),
    Planted(
        "checkpoints",
        "only a checkpoint that is pinned already can be restored from",
        "allowed_moves_are_made",
        '        (READY, "pin"): PINNED,\n',
        "",
    ),
    Planted(
        "checkpoints",
        "the end of one restore drops the pins of all (LMDeploy #4700)",
        "pinned_checkpoints_stay",
        "self.restores = left = self.restores - 1",
        "self.restores = left = 0",
    ),
    Planted(
        "state_cache",
        "an evicted checkpoint stays in the index (LMDeploy #4618)",
        "the_index_hears_of_every_eviction",
        "        tell(checkpoint)\n",
        "",
    ),
    Planted(
        "state_copies",
        "copies whose sources are neighbours are merged, wherever they go",
        "copies_are_sorted_disjoint_runs",
        "if (source, destination) == (run.source + run.size, run.destination + run.size):",
        "if source == run.source + run.size:",
    ),
    Planted(
        "state_copies",
        "saves run from the checkpoint to the request",
        "restores_come_before_saves",
        "zip(running, save, strict=True) if any(copy[1])",
        "zip(save, running, strict=True) if any(copy[0])",
    ),
    Planted(
        "state_pool",
        "row 0 is handed out (LMDeploy before #4618: reserved rows counted wrong)",
        "rows_have_one_owner",
        "range(count, 0, -1)",
        "range(count - 1, -1, -1)",
    ),
    Planted(
        "running_states",
        "a running request takes a second row (LMDeploy #4691)",
        "a_running_request_gets_its_row_back",
        "if ids is None and len(self.rows) < self._most:",
        "if len(self.rows) < self._most:",
    ),
    Planted(
        "running_states",
        "one request more than allowed runs (LMDeploy #4691)",
        "requests_wait_only_for_pinned_checkpoints",
        "len(self.rows) < self._most:",
        "len(self.rows) <= self._most:",
    ),
    Planted(
        "state_cache",
        "a reservation never makes room for itself (LMDeploy #4618, a0426f204)",
        "checkpoints_borrow_idle_rows",
        "        ids = self._take()\n        self._spared = None\n",
        "        ids = self.home.take()\n        self._spared = None\n",
    ),
    Planted(
        "state_cache",
        "a checkpoint that was just used goes first",
        "the_least_recent_checkpoint_goes",
        "            self._ready[checkpoint] = None\n",
        "            self._ready[checkpoint] = None\n"
        "            self._ready.move_to_end(checkpoint, last=False)\n",
    ),
    Planted(
        "state_cache",
        "decode checkpoints pile up",
        "one_replaceable_checkpoint_per_request",
        "            if old.status == READY:\n                self._evict(old)\n",
        "",
    ),
    Planted(
        "state_cache",
        "the old checkpoint goes before the new one is certain (LMDeploy #4618, db1590e47)",
        "decode_checkpoints_go_when_their_successor_is_certain",
        "self._spared = self._replaceable.get(request)",
        "self._spared = None",
    ),
    Planted(
        "state_copies",
        "only the first block of a state is copied",
        "checkpoints_hold_exactly_their_tokens",
        "for pair in zip(source, destination, strict=True)",
        "for pair in zip(source[:1], destination[:1], strict=True)",
    ),
    Planted(
        "state_saves",
        "a shared prompt is checkpointed only at its end (SGLang: 0 % hits)",
        "junctions_are_saved",
        "if start < junction <= stop else []",
        "if start == junction else []",
    ),
    Planted(
        "state_saves",
        "a step of several tokens runs over the interval (SGLang: tracking degrades)",
        "decode_states_keep_their_interval",
        "multiple = stop // interval * interval",
        "multiple = stop if stop % interval == 0 else 0",
    ),
    Planted(
        "state_saves",
        "every unit border becomes a checkpoint (vLLM, mode `all`)",
        "saves_are_bounded",
        "            saved.append(border)",
        "            saved.extend(range(start // unit * unit + unit, border + 1, unit))",
    ),
    Planted(
        "state_saves",
        "a state is saved inside a span (LMDeploy #4618, efd2ffc8b)",
        "no_state_is_saved_inside_a_span",
        "while border > start",
        "while False and border > start",
    ),
    Planted(
        "state_copies",
        "re-ordering a batch leaves the running rows in place",
        "rows_follow_their_requests",
        "return StateBatch(*(offsets[chosen] for offsets in self))",
        "return StateBatch(self.running[np.sort(chosen)], self.restore[chosen], self.save[chosen])",
    ),
    Planted(
        "running_states",
        "after a verification the state without any draft runs on (vLLM, rollback)",
        "rejected_drafts_leave_no_rows",
        "= rows.pop(accepted)",
        "= rows.pop(0)",
    ),
)


SEEDS = 4
"""Most faults are seen with the first."""
BUDGET = settings(BUDGETS["pr"], phases=[Phase.generate])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.property)
def test_a_planted_fault_is_seen_by_its_property(fault):
    name = f"states_{FAULTS.index(fault)}"
    plant(name, Fault(f"reference.{fault.module}", fault.old, fault.new))
    broken = load(name, "suites.states.part").PART
    others = {prop.name for prop in PART.properties} - {fault.property}
    runs = (explore(broken, BUDGET, seed=seed, tolerate=others) for seed in range(SEEDS))
    seen = next((run for run in runs if run.violation), None)
    assert seen is not None
    assert seen.violation.property == fault.property


def test_every_property_has_its_fault():
    assert {fault.property for fault in FAULTS} == {prop.name for prop in PART.properties}
