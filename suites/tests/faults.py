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
        "        request.node = self.trie.hold(match, root)\n"
        "        request.table = request.node.table() + self._take("
        "-(-stop // size) - match.blocks)\n",
        "        hit_blocks = match.node.table()[: match.blocks] if match.node else array('i')\n"
        "        new_blocks = self._take(-(-stop // size) - match.blocks)\n"
        "        request.node = self.trie.hold(match, root)\n"
        "        request.table = hit_blocks + new_blocks\n",
    ),
    "collision_accepted": Fault(
        "children are told apart by a weak hash of their first block (vLLM #54727, #12621)",
        "prefix_trie",
        "            first = tokens[position : position + stride]\n"
        "            child = node.children.get((first, marks) if marks else first)\n"
        "            if child is None:\n"
        "                break\n"
        "            node, marks, edge = child, (), child.tokens\n"
        "            size = len(edge)\n"
        "            if position + size > stop or not tokens.startswith(edge, position):\n",
        "            weak = [c for c in node.children.values()"
        " if sum(c.tokens) % 3 == sum(tokens[position : position + len(c.tokens)]) % 3]\n"
        "            if not weak:\n"
        "                break\n"
        "            node, marks, edge = weak[0], (), weak[0].tokens\n"
        "            size = len(edge)\n"
        "            if position + size > stop:\n",
    ),
    "namespace_ignored": Fault(
        "the salt is left out of the index key (vLLM #3263, #44701)",
        "cache_manager",
        "        cuts = segments(spans, size) if spans else PLAIN\n"
        "        root = (GROUP, namespace)\n",
        "        cuts = segments(spans, size) if spans else PLAIN\n"
        "        root = (GROUP, namespace._replace(salt=None))\n",
    ),
    "last_block_off_by_one": Fault(
        "a prompt that ends on a block border hits its own last block (mlxz, vLLM #12284)",
        "cache_manager",
        "self.trie.match(root, data, cuts, (count - 1) // size) if access.read",
        "self.trie.match(root, data, cuts, count // size) if access.read",
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
        "        if refusal:\n            return refusal\n        request.tokens = known\n",
        "        if refusal:\n"
        "            request.table.extend(self._take(min(needed, self.pool.num_free)))\n"
        "            return refusal\n        request.tokens = known\n",
    ),
    "stale_epoch": Fault(
        "a step in flight during a reset indexes what it computed before (vLLM #46893)",
        "cache_manager",
        "            if request.access.write and request.epoch == self.epoch and",
        "            if request.access.write and",
    ),
    "failed_match_refreshes": Fault(
        "a match moves its node to the young end although nothing was admitted (mini-sglang)",
        "prefix_trie",
        "        return Match(node, inside, position // self._stride)\n",
        "        if node in self._idle:\n            self._idle.move_to_end(node)\n"
        "        return Match(node, inside, position // self._stride)\n",
    ),
    "double_free": Fault(
        "a request that leaves while its step runs gives its scratch back twice (vLLM #42571)",
        "cache_manager",
        "        request.released = True\n",
        "        request.released = True\n"
        "        if self._steps.runs(request.last_step):\n"
        "            self.pool.give(request.table[request.indexed :])\n",
    ),
}
"""Name -> fault."""

REGRESSIONS = {
    "split_node_gives_back_whole_table": Fault(
        "the table of a hit was read from a node that holding the hit had just split",
        "cache_manager",
        "request.table = request.node.table() + self._take(",
        "request.table = (match.node.table() if match.node else array('i')) + self._take(",
    ),
    "request_released_in_flight_is_not_stored": Fault(
        "a step that ended after its request had been released stored its blocks",
        "cache_manager",
        " and request.epoch == self.epoch and not request.released:",
        " and request.epoch == self.epoch:",
    ),
    "replaced_block_waits_for_the_running_step": Fault(
        "a block replaced by an equal one was free while a later step still read it",
        "cache_manager",
        "        if self._steps.runs(request.last_step):\n            self.retired.append(own)\n",
        "        if False:\n            self.retired.append(own)\n",
    ),
    "pinned_path_survives_a_reset": Fault(
        "after a reset only the last node of a pinned path counted as held",
        "reference",
        "*(n for pin in manager.pins.values() for n in pin.path())",
        "*manager.pins.values()",
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
    original = (
        f"kvproof.harness.adapters.{module}"
        if module == "reference"
        else (f"kvproof.reference.{module}")
    )
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
    return source.replace("from kvproof.reference.", f"from {package}.")


sys.meta_path.append(_Copies())


def __getattr__(name: str) -> Callable[[TargetConfig], Target]:
    if name not in FAULTS | REGRESSIONS:
        raise AttributeError(name)
    adapter: Any = importlib.import_module(f"{_PREFIX}{name}.reference")
    return adapter.make_target
