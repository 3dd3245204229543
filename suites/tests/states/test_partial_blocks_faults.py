"""Partial last blocks with a bug planted: each falls to the property named for it (T6)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Group, Namespace, Request, Span, TargetConfig
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.session import Session
from kvproof.suites.faults.planting import Edit
from kvproof.suites.tests.framework import planted

ONE = TargetConfig(num_blocks=12, block_size=4, partial_blocks=True)
TIGHT = replace(ONE, num_blocks=4)
TWO = replace(ONE, groups=(Group("full", 4), Group("full", 2)), num_blocks=40)

A = Request("a", (1, 2, 3, 4, 5, 6, 7))
B = Request("b", (1, 2, 3, 4, 5, 6, 7, 8))
FORK = Request("c", (1, 2, 3, 4, 5, 9))
BORDER = Request("d", (1, 2, 3, 4, 5, 6, 9, 9))
"""It shares six tokens with A: a block of the smaller group, and half of one of the larger."""
SHORT = Request("s", (1, 2, 3))
MEDIA = replace(A, spans=(Span("image", 5, 2, "h"),))


def whole(request):
    """Compute a request in one step and let it leave."""
    return (ops.Admit(request), ops.Complete(), ops.Finish(request.id))


class Case(NamedTuple):
    """A history that the reference passes, and the fault is found by."""

    module: str
    old: str
    new: str
    history: tuple[ops.Operation, ...]
    property: str
    config: TargetConfig = ONE


CASES = {
    "writes_into_what_it_hits": Case(
        "cache.allocator",
        "        return tuple(self._index.copies(",
        "        return () and tuple(self._index.copies(",
        (*whole(A), ops.Admit(B)),
        "partial_blocks_are_copied_before_they_are_written",
    ),
    "copies_one_block_for_all_groups": Case(
        "prefix.partial_blocks",
        "        return [(source, mine) for",
        "        return [(match.block.blocks[0], mine) for",
        (*whole(A), ops.Admit(B)),
        "partial_blocks_are_copied_before_they_are_written",
        TWO,
    ),
    "copies_a_block_beyond_the_hit": Case(
        "prefix.partial_blocks",
        "if first < match.tokens]",
        "if first <= match.tokens]",
        (*whole(A), ops.Admit(BORDER)),
        "partial_blocks_are_copied_before_they_are_written",
        TWO,
    ),
    "hands_out_what_it_copies_from": Case(
        "cache.allocator",
        "        self._steps.run_after(self._steps.newest, partial(self._unlock, block))\n",
        "        self._unlock(block)\n",
        (*whole(SHORT), ops.Admit(replace(B, id="x", tokens=(1, 2, 9))), ops.Admit(B)),
        "a_running_step_keeps_its_blocks",
        TIGHT,
    ),
    "goes_on_in_another_namespace": Case(
        "cache.hit_length",
        "            return request.namespace\n",
        "            return request.namespace._replace(salt=None)\n",
        (*whole(SHORT), ops.Admit(replace(B, namespace=Namespace(salt="x")))),
        "hits_come_from_the_cache",
    ),
    "keeps_what_may_not_be_stored": Case(
        "cache.allocator",
        " or not request.access.write:",
        ":",
        (*whole(replace(A, store=False)), ops.Admit(B)),
        "cached_blocks_are_those_stored",
    ),
    "keeps_what_was_computed_before_a_reset": Case(
        "cache.allocator",
        " or request.epoch != epoch",
        "",
        (ops.Admit(SHORT), ops.Complete(), ops.Reset(), ops.Finish("s"), ops.Admit(B)),
        "cached_blocks_are_those_stored",
    ),
    "ends_inside_a_span": Case(
        "cache.hit_length",
        "[cached, outside_spans(spans)] if spans else [cached]",
        "[cached]",
        (*whole(MEDIA), ops.Admit(replace(MEDIA, id="b"))),
        "hits_never_end_inside_a_span",
    ),
    "takes_other_media_for_equal": Case(
        "prefix.partial_blocks",
        "        marks = tuple(span for span in spans if 0 <= span.start - start < len(symbols))\n",
        "        marks = ()\n",
        (*whole(MEDIA), ops.Admit(replace(B, spans=(Span("image", 5, 2, "i"),)))),
        "hits_come_from_the_cache",
    ),
    "tails_outlive_the_block_before": Case(
        "cache.eviction",
        "        if self.partial:\n            victims += self.partial.evict(count)\n",
        "        if False:\n            victims += self.partial.evict(count)\n",
        (*whole(A), ops.Evict(1)),
        "least_recent_goes_first",
    ),
    "loses_a_hit": Case(
        "cache.allocator",
        "        return unused + self._index.insert(",
        "        if len(tokens) > 8:\n            return uncached\n"
        "        return unused + self._index.insert(",
        (*whole(A), ops.Admit(B)),
        "cached_blocks_are_those_stored",
    ),
    "never_gives_the_source_back": Case(
        "cache.allocator",
        "        self._pool.free(self._index.unlock(block))\n",
        "        pass\n",
        (*whole(A), *whole(FORK)),
        "held_blocks_are_those_in_tables",
    ),
}


def play(target, case):
    session = Session(target, case.config)
    for operation in case.history:
        session.apply(operation)
    return session


@pytest.mark.parametrize("name", CASES)
def test_the_reference_passes(name):
    case = CASES[name]
    assert play(make_target(case.config), case).checks.total() > 0


@pytest.mark.parametrize("name", CASES)
def test_the_fault_is_found_by_its_property(name):
    case = CASES[name]
    planted.plant(f"partial_{name}", Edit(f"reference.{case.module}", case.old, case.new))
    adapter = planted.load(f"partial_{name}", "harness.adapters.reference.target")
    with pytest.raises(Violation) as broken:
        play(adapter.make_target(case.config), case)
    assert broken.value.property == case.property, broken.value
