"""Memory of the shadow device: ids of two memories, and entries of several tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvproof.harness.contract.whole_engine import EngineConfig, EngineRequest, GroupKind, Reads, Row
from kvproof.harness.model.chain import Chain
from kvproof.harness.whole_engine.admissions import Admissions
from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.memory import DeviceMemory, Layer, Pool
from kvproof.harness.whole_engine.requests import chain_of

BLOCKS, SIZE = 8, 4
FULL, WINDOW = GroupKind(layers=1), GroupKind("window", 4)
PROMPT = tuple(range(11, 11 + SIZE))
COPIES = "blocks_in_flight_are_not_reused"
LEAVES = "a_block_leaves_the_index_for_another_one"
OVERLAP = pytest.mark.parametrize("names", [("", ""), ("full", "window")])


class Engine:
    """A device with a full and a window pool, in one memory or in two."""

    def __init__(self, names: tuple[str, str]) -> None:
        pools = [self._pool(kind, name) for kind, name in zip((FULL, WINDOW), names, strict=True)]
        self.findings = Findings()
        self.device = ShadowDevice(DeviceMemory(pools, BLOCKS), self.findings)
        for name in ("r1", "r2"):
            request = EngineRequest(name, PROMPT)
            self.device.register(request, chain_of(request, (FULL, WINDOW)))
        self.admissions = Admissions(self.findings, EngineConfig(), self.device)

    @staticmethod
    def _pool(kind: GroupKind, name: str) -> Pool:
        words = np.zeros((BLOCKS, SIZE, 2), np.uint64)
        return Pool(kind, SIZE, SIZE, [Layer(kind.kind, words)], memory=name)

    def compute(self, request: str, full: int, window: int) -> Any:
        """Compute a prompt of one block in each group."""
        groups = tuple(
            Reads(np.array([block]), np.arange(block * SIZE, (block + 1) * SIZE), [block])
            for block in (full, window)
        )
        row = Row(request, 0, PROMPT, 0, True, True, False, groups=groups)  # noqa: FBT003 - its fields
        return self.device.launch([row])

    @property
    def broken(self) -> str:
        """The property that was found broken; empty: none."""
        return self.findings.wrong.property if self.findings.wrong else ""


@OVERLAP
def test_a_launch_disturbs_a_copy_of_its_own_memory_alone(names: tuple[str, str]) -> None:
    engine = Engine(names)
    engine.compute("r1", 2, 3)
    copy = engine.device.transfer(lambda: None, stream="store", reads=[3], memory=names[1])
    engine.compute("r2", 3, 4)
    engine.device.wait(copy)
    assert engine.broken == (COPIES if names[0] == names[1] else "")


def test_a_launch_disturbs_a_copy_of_the_memory_that_is_named() -> None:
    engine = Engine(("full", "window"))
    engine.compute("r1", 2, 3)
    copy = engine.device.transfer(lambda: None, stream="store", reads=[4], memory="window")
    engine.compute("r2", 3, 4)
    engine.device.wait(copy)
    assert engine.broken == COPIES


@pytest.mark.parametrize(("slots", "broken"), [({}, COPIES), ({2: 2}, ""), ({2: 3}, COPIES)])
def test_a_launch_goes_on_behind_the_slots_that_a_copy_counts(
    slots: dict[int, int], broken: str
) -> None:
    engine = Engine(("", ""))
    copy = engine.device.transfer(lambda: None, stream="out", reads=[2], beginnings=slots)
    engine.device.memory.write(
        0, np.array([2 * SIZE + 2]), np.array([7], np.uint64), epoch=0, launch=1
    )
    engine.device.wait(copy)
    assert engine.broken == broken


def test_a_copy_of_a_beginning_is_disturbed_by_whatever_takes_its_block() -> None:
    engine = Engine(("", ""))
    copy = engine.device.transfer(lambda: None, stream="out", reads=[2], beginnings={2: 1})
    engine.device.memory.marks[""].whole(2, 1)
    engine.device.wait(copy)
    assert engine.broken == COPIES


def test_the_last_writer_of_a_block_is_known_by_its_memory() -> None:
    engine = Engine(("full", "window"))
    engine.compute("r1", 2, 3)
    engine.compute("r2", 3, 4)
    memory = engine.device.memory
    assert [int(memory.of(group).written[3]) for group in (0, 1)] == [2, 1]


@OVERLAP
def test_a_block_that_leaves_the_index_was_given_in_its_own_memory(names: tuple[str, str]) -> None:
    engine = Engine(names)
    engine.admissions.before({("key", 1): [3]})
    engine.admissions.stepped({}, {names[0]: [3]}, {})
    assert engine.broken == ("" if names[0] == names[1] else LEAVES)


LATENTS = GroupKind(further_ratios=(4,))
LONG = tuple(range(10, 22))
BLOCKS_OF_R = [1, 2, 3]
READS = "reads_return_own_content"


def words(entry: int) -> np.ndarray:
    return np.zeros((5, 4 // entry, 2), np.uint64)


def indexed() -> ShadowDevice:
    layers = [Layer("layer", words(1)), Layer("indexer", words(4), entry=4)]
    made = ShadowDevice(DeviceMemory([Pool(LATENTS, 4, 4, layers)], 5), Findings())
    made.register(EngineRequest("r", LONG, answers=4), Chain(LONG, [LATENTS]))
    return made


def row_of(start: int, stop: int, *, fresh: bool) -> Row:
    reads = Reads(np.array(BLOCKS_OF_R), np.empty(0, np.int64), BLOCKS_OF_R)
    return Row(
        request="r",
        start=start,
        tokens=LONG[start:stop],
        drafts=0,
        samples=False,
        fresh=fresh,
        device_start=False,
        adapter=("", 0),
        media=(),
        groups=(reads,),
    )


@pytest.mark.parametrize(("hit", "wrong"), [(4, ""), (8, ""), (5, READS), (7, READS)], ids=str)
def test_an_entry_is_whole_where_the_request_has_computed_all_its_tokens(
    hit: int, wrong: str
) -> None:
    made = indexed()
    for start, stop in ((0, 6), (6, 12)):
        made.launch([row_of(start, stop, fresh=not start)])
    assert made.findings.wrong is None
    made.launch([row_of(hit, 12, fresh=True)])
    found = made.findings.wrong
    assert (found.property if found else "") == wrong
    assert not found or "its first tokens were not computed again" in found.sentence


def test_an_entry_lies_in_the_slot_of_its_last_token() -> None:
    made = indexed()
    made.launch([row_of(0, 7, fresh=True)])
    layer, indexer = made.memory.pools[0].layers
    assert layer.words[2, 2].all()
    assert not layer.words[2, 3].any()
    assert indexer.words[1, 0].all()
    assert not indexer.words[2].any()
