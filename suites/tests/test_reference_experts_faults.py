"""Each property of the part `experts` sees the fault that it is there for."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import Phase, settings

from kvproof.suites.cache.budgets import BUDGETS
from kvproof.suites.experts.part import PART
from kvproof.suites.part_machine import explore
from kvproof.suites.tests.planted import Fault, load, plant


class Planted(NamedTuple):
    """A bug in the history of experts: `property` has to notice that `old` is `new`."""

    story: str
    property: str
    old: str
    new: str


FAULTS = (
    Planted(
        "256 experts take two bytes each",
        "expert_ids_are_small_integers",
        "np.uint8 if self.experts <= 256",
        "np.uint8 if self.experts < 256",
    ),
    Planted(
        "a split leaves the rows of the front with the rest (SGLang: rows follow slots)",
        "expert_rows_move_with_their_blocks",
        "self._put(owner, shelf.rows[cut:], shelf.known[count:])",
        "self._put(owner, shelf.rows, shelf.known[count:])",
    ),
    Planted(
        "ids that no expert has wrap around",
        "unfit_expert_rows_are_refused",
        "if given.size and not 0 <= given.min() <= given.max() < self.experts:",
        "if given.size and given.min() < 0:",
    ),
    Planted(
        "the rows of a hit lie one unit late (vLLM #35744: rows by another group's table)",
        "returned_expert_rows_are_right",
        "            at += count * unit\n",
        "            at += have * unit\n",
    ),
    Planted(
        "the last token is given a row too (vLLM: it has none)",
        "expert_rows_cover_all_tokens_but_the_last",
        "size = max(total - 1, 0)",
        "size = total",
    ),
    Planted(
        "what is missing in a hit is returned as zeros (LMDeploy #4618: silently short)",
        "unrecorded_expert_rows_are_named",
        "missing[: self.hit] = ~store.read(path, rows[: self.hit])",
        "missing[: self.hit] = store.read(path, rows[: self.hit]) & False",
    ),
    Planted(
        "units that have rows already count as filled",
        "gaps_in_expert_rows_are_filled",
        "filled = shelf.known.count(0, first, first + count)",
        "filled = count",
    ),
    Planted(
        "units behind a gap count as complete (LMDeploy #4618: the hit did not stop)",
        "the_first_missing_expert_row_is_found",
        "complete = min(len(known), count) if gap < 0 else gap",
        "complete = min(len(known), count)",
    ),
    Planted(
        "rows of rejected drafts stay behind the end (LMDeploy, set_step)",
        "expert_rows_roll_back_with_drafts",
        "self._known[start - self.hit : stop] = rows is not None",
        "self._known[start - self.hit : stop] |= rows is not None",
    ),
    Planted(
        "a reset keeps the rows (vLLM: no generation in the key)",
        "no_expert_rows_across_epochs",
        "        self._shelves.clear()\n",
        "",
    ),
)

SEEDS = 4
"""Most faults are seen with the first."""
BUDGET = settings(BUDGETS["pr"], phases=[Phase.generate])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.property)
def test_a_planted_fault_is_seen_by_its_property(fault):
    name = f"experts_{FAULTS.index(fault)}"
    plant(name, Fault("reference.expert_history", fault.old, fault.new))
    broken = load(name, "suites.experts.part").PART
    others = {prop.name for prop in PART.properties} - {fault.property}
    runs = (explore(broken, BUDGET, seed=seed, tolerate=others) for seed in range(SEEDS))
    seen = next((run for run in runs if run.violation), None)
    assert seen is not None
    assert seen.violation.property == fault.property


def test_every_property_has_its_fault():
    assert {fault.property for fault in FAULTS} == {prop.name for prop in PART.properties}
