"""Servers with a planted fault, for tests: `RUN` is what their process begins with."""

from __future__ import annotations

import sys

from kvproof.suites.faults.catalogue import find
from kvproof.suites.faults.planting import Edit, plant

RUN = "from kvproof.suites.tests.probe.probe_url_faults import main; main({!r})"

OWN = {
    "image_ignored": Edit(
        "reference.server.language.symbolic_text",
        "content_hash(part.image.data)",
        "content_hash(b'')",
    ),
    "count_halved": Edit(
        "reference.server.engine_loop",
        "answer.cached = int(decision.detail[0])",
        "answer.cached = int(decision.detail[0]) // 2",
    ),
    "count_of_prompt": Edit(
        "reference.server.engine_loop",
        "answer.cached = int(decision.detail[0])",
        "answer.cached = len(answer.order.prepared.tokens) + 1",
    ),
    "hits_counted_twice": Edit(
        "reference.cache.cache_manager",
        "self.statistics.count(state.prompt, start, resumed=request.resumed)",
        "self.statistics.count(state.prompt, 2 * start, resumed=request.resumed)",
    ),
    "wrong_block": Edit(
        "reference.cache.allocator",
        "request.table = node.table()\n",
        "request.table = own = node.table()\n"
        "        if own:\n"
        "            other, self.other = getattr(self, 'other', own), own[:]\n"
        "            own[: len(other)] = other[: len(own)]\n",
    ),
    "namesake_beside": Edit(
        "reference.cache.cache_manager",
        "request.id, request.tokens, request.namespace, request.spans, self._unit",
        "request.id, request.tokens,\n"
        "            next((e.namespace for e in self.live.values()), request.namespace),\n"
        "            request.spans, self._unit",
    ),
    "long_goes_first": Edit(
        "reference.engine.scheduler",
        "        order = sorted(ready, key=lambda request: request.wanted)\n",
        "        order = sorted(ready, key=lambda request: -request.wanted)\n"
        "        if ready and order[0].wanted >= tokens:\n"
        "            return {each.id: tokens * (each is order[0]) for each in order}\n",
    ),
    "wrong_beside": Edit(
        "reference.cache.allocator",
        "request.table = node.table()\n",
        "request.table = node.table()\n"
        "        from kvproof.suites.faults.situated import strike\n\n"
        "        strike(self, request, request.table, self._pool.num_free, 'company-2')\n",
    ),
    "cancelled_twice_freed": Edit(
        "reference.engine.scheduler",
        "self.cache.release(request.id)\n",
        "table = self.cache.release(request.id)\n"
        "        if request.status == 'cancelled':\n"
        "            self.cache.pool.free(table[:1])\n",
    ),
}


def main(name: str) -> None:
    """Plant faults, whose names a plus sign separates, and run the command line."""
    for each in name.split("+"):
        plant(OWN[each] if each in OWN else find(each))
    from kvproof.harness.cli import main as run

    run(sys.argv[1:])
