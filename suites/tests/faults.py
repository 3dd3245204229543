"""Bugs planted in copies of the reference, each modelled on one that real engines had.

A fault is a replacement of a few lines in one module. The copy of the reference that carries it
is imported under a name of its own, so production code has no switches and both can run side by
side. A reproducer script opens a fault in a fresh process as
`kvproof.suites.tests.faults:<name>`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from kvproof.harness.target import Target, TargetConfig


class Fault(NamedTuple):
    """Replace `old` by `new` in `module`; `old` occurs there exactly once."""

    story: str
    module: str
    old: str
    new: str


FAULTS = {
    "lost_reference": Fault(
        "the second holder of a cached path is not counted (vllm-ascend #14301 and its kin)",
        "prefix_trie",
        "            node.holds += 1\n            assert node.parent is not None",
        "            node.holds = 1\n            assert node.parent is not None",
    ),
    "hit_evicted": Fault(
        "new blocks are taken before the hit is held (vLLM #33775, #44409)",
        "cache_manager",
        "        self.holdings.hold(request, hit)\n        self.live[request_id] = request\n",
        "        table = hit.node.table()[: hit.units] if hit.node else array('i')\n"
        "        units = max(0, -(-stop // self._unit) - hit.units)\n"
        "        taken = self.residency.take(units * self.residency.row_width)\n"
        "        self.holdings.hold(request, hit)\n"
        "        request.table, request.units = table + taken, hit.units + units\n"
        "        self.live[request_id] = request\n",
    ),
    "collision_accepted": Fault(
        "children are told apart by a weak hash of their first block (vLLM #54727, #12621)",
        "trie_match",
        "        first = tokens[position : position + stride]\n"
        "        child = node.children.get((first, marks) if marks else first)\n"
        "        if child is None:\n"
        "            break\n"
        "        node, marks, edge = child, (), child.tokens\n"
        "        size = len(edge)\n"
        "        if position + size > stop or not tokens.startswith(edge, position):\n",
        "        weak = [c for c in node.children.values()"
        " if sum(c.tokens) % 3 == sum(tokens[position : position + len(c.tokens)]) % 3]\n"
        "        if not weak:\n"
        "            break\n"
        "        node, marks, edge = weak[0], (), weak[0].tokens\n"
        "        size = len(edge)\n"
        "        if position + size > stop:\n",
    ),
    "namespace_ignored": Fault(
        "the salt is left out of the index key (vLLM #3263, #44701)",
        "requests",
        "        self.namespace = namespace\n",
        "        self.namespace = namespace._replace(salt=None)\n",
    ),
    "last_block_off_by_one": Fault(
        "a prompt that ends on a block border hits its own last block (mlxz, vLLM #12284)",
        "cache_manager",
        "self.hits.find(request, request.prompt - 1) if access.read",
        "self.hits.find(request, request.prompt) if access.read",
    ),
    "padding_expanded": Fault(
        "padding is expanded as if it were the last block of the pool (vLLM #28661)",
        "block_table",
        "    pages = batch[..., None] * np.int32(ratio)",
        "    pages = np.where(batch[..., None] == NULL_BLOCK, batch.max(), batch[..., None])"
        " * np.int32(ratio)",
    ),
    "refusal_leaks": Fault(
        "a refused extension keeps the tokens and blocks it could get (vLLM #24228)",
        "cache_manager",
        "            request.tokens, request.drafts = before, 0\n            return refusal\n",
        "            request.table.extend(self.residency.take(min(1, self.pool.num_free)))\n"
        "            return refusal\n",
    ),
    "stale_epoch": Fault(
        "a step in flight during a reset indexes what it computed before (vLLM #46893)",
        "cache_manager",
        "            current = request.epoch == self.holdings.epoch and not request.released\n",
        "            current = not request.released\n",
    ),
    "failed_match_refreshes": Fault(
        "a match moves its node to the young end although nothing was admitted (mini-sglang)",
        "prefix_trie",
        "        return longest_match(node, tokens, segments, limit, self._stride)\n",
        "        found = longest_match(node, tokens, segments, limit, self._stride)\n"
        "        if found.node in self._idle:\n"
        "            self._idle.move_to_end(found.node)\n"
        "        return found\n",
    ),
    "double_free": Fault(
        "a request that leaves while its step runs gives its scratch back twice (vLLM #42571)",
        "holdings",
        "        request.released = True\n",
        "        request.released = True\n"
        "        if self._steps.runs(request.last_step):\n"
        "            self._pool.give(request.table[request.indexed :])\n",
    ),
}
"""Name -> fault."""

REGRESSIONS = {
    "split_node_gives_back_whole_table": Fault(
        "the table of a hit was read from a node that holding the hit had just split",
        "holdings",
        "        request.table = node.table()\n",
        "        request.table = hit.node.table() if hit.node else node.table()\n",
    ),
    "request_released_in_flight_is_not_stored": Fault(
        "a step that ended after its request had been released stored its blocks",
        "cache_manager",
        "            current = request.epoch == self.holdings.epoch and not request.released\n",
        "            current = request.epoch == self.holdings.epoch\n",
    ),
    "replaced_block_waits_for_the_running_step": Fault(
        "a block replaced by an equal one was free while a later step still read it",
        "holdings",
        "        if self._steps.runs(request.last_step):\n            self.retired.append(ids)\n",
        "        if False:\n            self.retired.append(ids)\n",
    ),
    "pinned_path_survives_a_reset": Fault(
        "after a reset only the last node of a pinned path counted as held",
        "reference_view",
        "*(node for request in requests for node in request.node.path())",
        "*(request.node for request in requests)",
    ),
}
"""Op log of the corpus -> the bug that it was recorded for."""

_PREFIX = "kvproof_fault_"


class _Copies(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Imports `kvproof_fault_<name>.<module>` from the production source, patched."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(_PREFIX):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package="." not in fullname)

    def get_filename(self, fullname: str) -> str:
        return fullname

    def get_data(self, path: str | bytes) -> bytes:
        package, _, module = str(path).partition(".")
        return _patched(package, module).encode() if module else b""

    def is_package(self, fullname: str) -> bool:
        return "." not in fullname


def _patched(package: str, module: str) -> str:
    of_adapter = module.partition("_")[0] == "reference"
    original = f"kvproof.{'harness.adapters' if of_adapter else 'reference'}.{module}"
    spec = importlib.util.find_spec(original)
    assert spec is not None
    assert spec.origin is not None
    with open(spec.origin) as file:  # noqa: PTH123 - no path arithmetic needed
        source = file.read()
    fault = (FAULTS | REGRESSIONS)[package.removeprefix(_PREFIX)]
    if module == fault.module:
        assert source.count(fault.old) == 1, f"{package}: {fault.old!r} must occur once"
        source = source.replace(fault.old, fault.new)
    source = source.replace("from kvproof.reference import ", f"from {package} import ")
    source = source.replace("from kvproof.harness.adapters.reference", f"from {package}.reference")
    return source.replace("from kvproof.reference.", f"from {package}.")


sys.meta_path.append(_Copies())


def __getattr__(name: str) -> Callable[[TargetConfig], Target]:
    if name not in FAULTS | REGRESSIONS:
        raise AttributeError(name)
    adapter: Any = importlib.import_module(f"{_PREFIX}{name}.reference")
    return adapter.make_target
