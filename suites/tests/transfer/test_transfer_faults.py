"""The suite `transfer` passes on the reference, and each property finds faults of its kind."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the extra gpu is not installed")

from kvproof.suites.reference.transfer.strategies import SUITE
from kvproof.suites.tests.fast_share import one_in
from kvproof.suites.tests.framework.suite_faults import Planted, catalogued, falls, sees_everything

FAULTS = (
    *catalogued("transfer"),
    Planted(
        "a window keeps one token too few",
        "a_chunk_is_described_to_the_byte",
        "transfer.chunk_layout",
        "return max(0, length - geometry.size + 1)",
        "return max(0, length - geometry.size + 2)",
    ),
    Planted(
        "a batch may have one slot more than there are",
        "slots_have_views_of_every_group",
        "transfer.staging",
        "first + count > self.slots:",
        "first + count > self.slots + 1:",
    ),
    Planted(
        "of neighbouring groups only the last one is copied",
        "stored_bytes_equal_the_pages",
        "transfer.chunk_layout",
        "start = found.pop()[0] if near else group.offset",
        "start = found.pop() and group.offset if near else group.offset",
    ),
    Planted(
        "chunks of a batch are unpacked in reverse",
        "retrieved_bytes_reach_their_blocks",
        "transfer.staged",
        "for chunk in chunks]\n        table",
        'for chunk in (chunks[::-1] if self._direction == "scatter" else chunks)]\n        table',
    ),
    Planted(
        "a skip is counted from the first stored token",
        "skipped_tokens_stay_untouched",
        "transfer.blocks",
        "return group.tokens if skip >= layout.tokens else 0",
        "return group.tokens if skip > layout.tokens else 0",
    ),
    Planted(
        "blocks that are not valid move",
        "only_valid_blocks_move",
        "transfer.blocks",
        "ids[each * chunk + at] if at in ranges[chunk] else 0 for",
        "ids[each * chunk + at] for",
    ),
    Planted(
        "a chunk with null blocks is copied as a whole",
        "only_valid_blocks_move",
        "transfer.blocks",
        "return not self.skip and 0 not in self.ids",
        "return not self.skip",
    ),
    Planted(
        "a slot keeps what lay between the groups of an earlier chunk",
        "nothing_else_is_written",
        "transfer.staged",
        "self._staging.clear_gaps(len(chunks), first=first)",
        "pass",
    ),
    Planted(
        "a hit needs the states of all chunks before it",
        "transferred_blocks_are_those_visible",
        "transfer.blocks",
        "if start + layout.tokens == length else",
        "if start + layout.tokens <= length else",
    ),
    Planted(
        "a hit may end where a window was not kept",
        "transferred_blocks_are_those_visible",
        "transfer.blocks",
        "    _check_end(layout, length)\n",
        "",
    ),
    Planted(
        "negative ids are taken for holes",
        "wrong_arguments_move_nothing",
        "transfer.blocks",
        "if least < 0 or most >= blocks:",
        "if most >= blocks:",
    ),
    Planted(
        "more ids than the chunks have are not looked at",
        "wrong_arguments_move_nothing",
        "transfer.blocks",
        "if len(ids) != each * chunks:",
        "if len(ids) < each * chunks:",
    ),
    Planted(
        "a block may be written twice",
        "wrong_arguments_move_nothing",
        "transfer.blocks",
        "if written and len(set(found)) < len(found):",
        "if written and len(set(found)) > len(found):",
    ),
    Planted(
        "the single tensor of several groups is the first",
        "objects_have_a_view_per_group",
        "transfer.host_object",
        "if len(self.layout.groups) > 1:",
        "if len(self.layout.groups) > 99:",
    ),
    Planted(
        "a slot is unpacked before it is filled",
        "every_byte_read_was_written",
        "transfer.staged",
        "        self._compute.wait(self._copies.record())\n        self._compute.run(lambda",
        "        self._compute.run(lambda",
    ),
    Planted(
        "the engine may overwrite pages that the copy engine still reads",
        "every_byte_read_was_written",
        "transfer.staged",
        "self._compute.wait(pages)  # the copies read them",
        "pass",
    ),
    Planted(
        "a retrieve is over before its pages are written",
        "every_byte_read_was_written",
        "transfer.staged",
        "        self._compute.wait(self._copies.record())\n        return self._compute.record()",
        "        return self._compute.record()",
    ),
)


@pytest.fixture(autouse=True)
def _compiled_only(monkeypatch):
    """Other tests of this process may have chosen Triton's interpreter, which is slow."""
    monkeypatch.setattr("kvproof.kernels.block_transfer.launch.runs_triton", lambda _: False)


@pytest.mark.slow(reason="explores until every situation occurs")
def test_the_part_passes_and_sees_everything():
    sees_everything(SUITE)


RARE = ("the engine may overwrite pages that the copy engine still reads",)
"""12 s of CPU time until it is found."""


@pytest.mark.parametrize(
    "fault",
    one_in(5, FAULTS, reason="finds planted faults by exploration", but=RARE),
    ids=lambda fault: fault.story,
)
def test_a_planted_fault_falls_to_its_property(fault):
    falls(SUITE, FAULTS.index(fault), fault)


def test_every_property_has_a_fault():
    assert {fault.property for fault in FAULTS} == {prop.name for prop in SUITE.properties}
