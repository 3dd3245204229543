"""Targets with one fault each: `kvproof.suites.tests.framework.faults:<name>`, also in a fresh
process.

Names are those of the catalogue, and of the bugs that op logs of the corpus were recorded for.
"""

from __future__ import annotations

from collections.abc import Callable

from kvproof.harness.contract.target import Target, TargetConfig
from kvproof.suites.faults import catalogue
from kvproof.suites.faults.planting import Edit
from kvproof.suites.tests.framework.planted import load, plant

REGRESSIONS = {
    # the table of a hit was read from a node that holding the hit had just split
    "split_node_gives_back_whole_table": Edit(
        "reference.cache.allocator",
        "        request.table = node.table()\n",
        "        request.table = hit.node.table() if hit.node else node.table()\n",
    ),
    # a step that ended after its request had been released stored its blocks
    "request_released_in_flight_is_not_stored": Edit(
        "reference.cache.cache_manager",
        "request.epoch == self.allocator.epoch and not request.released\n",
        "request.epoch == self.allocator.epoch\n",
    ),
    # a block replaced by an equal one was free while a later step still read it
    "replaced_block_waits_for_the_running_step": Edit(
        "reference.cache.allocator",
        "        if self._steps.runs(request.last_step):\n            self.duplicates.append",
        "        if False:\n            self.duplicates.append",
    ),
    # after a reset only the last node of a pinned path counted as held
    "pinned_path_survives_a_reset": Edit(
        "reference.cache.holders",
        "*(node for request in requests for node in request.node.path())",
        "*(request.node for request in requests)",
    ),
}
"""Op log of the corpus -> the bug that it was recorded for."""


def __getattr__(name: str) -> Callable[[TargetConfig], Target]:
    if name in REGRESSIONS:
        plant(name, REGRESSIONS[name])
    elif name in catalogue.load():
        plant(name, catalogue.find(name))
    else:
        raise AttributeError(name)
    make_target: Callable[[TargetConfig], Target] = load(
        name, "harness.adapters.reference.target"
    ).make_target
    return make_target
