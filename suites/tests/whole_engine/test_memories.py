"""Engines whose pools number their blocks alike: equal ids of two memories are different blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvproof.harness.contract.whole_engine import EngineConfig, EngineRequest, GroupKind, Reads, Row
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
