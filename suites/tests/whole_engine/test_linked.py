"""The wire between two engines: copies, messages, leases."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvproof.harness.contract.whole_engine import GroupKind
from kvproof.harness.model.fingerprints import Fingerprints
from kvproof.harness.whole_engine.clock import VirtualClock
from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.linked.driver import LinkedDriver
from kvproof.harness.whole_engine.linked.wire import (
    ARRIVE,
    DROPPED,
    HELD,
    TWICE,
    Endpoint,
    Piece,
    Wire,
)
from kvproof.harness.whole_engine.memory import DeviceMemory, Layer, Pool

BLOCKS, SIZE = 4, 2


class Ends:
    """Two devices and the wire between them; `held` is what the sender holds."""

    def __init__(self) -> None:
        self.findings = Findings()
        self.clock = VirtualClock(tick_s=1.0)
        self.wire = Wire(self.findings, self.clock)
        self.held = {1, 2}
        self.told: list[str] = []
        self.words, self.sender = self._end("prefill")
        self.received, self.receiver = self._end("decode")
        self.words[1:3] = 7

    def _end(self, name: str) -> tuple[Fingerprints, Endpoint]:
        words = np.zeros((BLOCKS, SIZE, 2), np.uint64)
        pool = Pool(GroupKind(), SIZE, SIZE, [Layer("layer", words)])
        device = ShadowDevice(DeviceMemory([pool], BLOCKS), self.findings)
        return words, Endpoint(device, lambda _: self.held, name=name)

    def copy(self) -> str:
        """Copy blocks 1 and 2 to the receiver's 2 and 3, end it, and return its state."""

        def piece(read: int, written: int) -> Piece:
            return Piece(read, written, lambda: np.copyto(self.received[written], self.words[read]))

        pieces = [piece(1, 2), piece(2, 3)]
        copy = self.wire.copy(
            "r", self.sender, self.receiver, pieces, lambda: self.told.append("r")
        )
        assert copy.state == "under way"
        assert not self.received.any()
        self.receiver.device.end_transfers()
        return copy.state


@pytest.fixture
def ends() -> Ends:
    return Ends()


def test_a_copy_moves_its_blocks_when_it_ends(ends: Ends) -> None:
    assert ends.copy() == "done"
    assert (ends.received[2:] == 7).all()
    assert ends.told == ["r"]
    assert ends.receiver.device.memory.of(0).received.tolist() == [False, False, True, True]
    assert ends.findings.wrong is None


def test_a_copy_that_loses_a_block_fails_and_tells_nobody(ends: Ends) -> None:
    ends.receiver.device.losses.pattern = 1
    assert ends.copy() == "failed"
    assert (ends.received[3] == 7).all()
    assert not (ends.received[2] == 7).any()
    assert ends.told == []
    assert ends.findings.context["broken"] == {"r": "a copy between engines fails in part"}


def test_blocks_that_are_freed_too_early_are_found(ends: Ends) -> None:
    ends.wire.promise("r", 30)
    ends.held.discard(2)
    ends.copy()
    assert ends.findings.wrong is not None
    assert ends.findings.wrong.property == HELD
    assert "[2] of r" in ends.findings.wrong.sentence


@pytest.mark.parametrize(
    ("other", "expected"), [(True, ["prefill", "decode"]), (False, ["prefill"])]
)
def test_the_events_of_a_reset_are_expected_also_if_the_other_engine_refuses(
    other: bool,  # noqa: FBT001 - a parameter of the test
    expected: list[str],
) -> None:
    told: list[str] = []

    def engine(*, resets: bool) -> SimpleNamespace:
        return SimpleNamespace(reset=lambda running: resets and not running)

    devices = [SimpleNamespace(epoch=0), SimpleNamespace(epoch=0)]
    prefill = engine(resets=True)
    prefill.device = devices[0]
    pair: Any = SimpleNamespace(
        _prefilling={}, _routed={}, live={}, prefill=prefill, engine=engine(resets=other),
        device=devices[1], findings=Findings(), _sightings=SimpleNamespace(reset_done=False),
        _prefill_index=SimpleNamespace(reset=lambda: told.append("prefill")),
        _index=SimpleNamespace(reset=lambda: told.append("decode")),
    )  # fmt: skip
    assert LinkedDriver._reset(pair) == ("done" if other else "refused")
    assert told == expected
    assert [each.epoch for each in devices] == [int(other)] * 2


@pytest.mark.parametrize(("renewed", "over"), [(False, True), (True, False)])
def test_a_lease_ends_unless_it_is_renewed(ends: Ends, *, renewed: bool, over: bool) -> None:
    ends.wire.promise("r", 30)
    ends.clock.tick = 29
    if renewed:
        ends.wire.renew("r", 20, "prefill")
    ends.clock.tick = 31
    ends.wire.renew("r", 20, "prefill")
    ends.held.clear()
    ends.copy()
    assert (ends.findings.wrong is None) == over
    assert ("read_after_its_lease" in ends.findings.context) == over


@pytest.mark.parametrize(("fate", "times"), [(0, 1), (DROPPED, 0), (TWICE, 2)])
def test_messages_come_late_or_twice_or_never(ends: Ends, fate: int, times: int) -> None:
    ends.wire.fate, ends.wire.delay = fate, 2
    ends.wire.send("decode", "prefill", b"r:1")
    assert ends.wire.take("decode") == {}
    ends.clock.tick = 2
    assert ends.wire.take("prefill").get("decode", []) == [b"r:1"] * times
    assert ends.wire.take("prefill") == {}


def test_the_second_message_behind_a_copy_is_noted(ends: Ends) -> None:
    ends.findings.tick = ends.clock.tick = 3
    ends.wire.fate = TWICE
    ends.wire.follow("prefill", "decode", b"r:1", "r")
    ends.clock.tick = 4
    assert ends.findings.repeated == -1
    ends.wire.take("decode")
    assert ends.findings.context["arrived"] == {"r": 4}
    assert ends.findings.repeated == 3
    assert ends.findings.situations["the end of a copy is reported twice"] == 1


def test_each_worker_has_a_lease_of_its_own(ends: Ends) -> None:
    ends.wire.promise("r", 30)
    ends.clock.tick = 29
    ends.wire.renew("r", 20, "another worker that prefills")
    ends.clock.tick = 31
    ends.held.clear()
    ends.copy()
    assert ends.findings.wrong is None, "this worker's lease has ended"
    assert ends.findings.context["read_after_its_lease"].keys() == {"r"}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_repeated_message_is_not_that_of_another_worker(ends: Ends, workers: int) -> None:
    ends.wire.copies = workers
    ends.wire.fate = TWICE
    ends.wire.follow("decode 0", "prefill", b"r:2", "r")
    ends.clock.tick = 1
    ends.wire.take("prefill")
    context = ends.findings.context
    assert context["repeated"] == {"r": 1}
    assert ("arrived" in context) == (workers == 1)
    ends.wire.fate = ARRIVE
    ends.wire.follow("decode 1", "prefill", b"r:2", "r")
    ends.wire.take("prefill")
    assert context["arrived"] == {"r": 1}


def test_parts_of_a_block_end_in_any_order_and_no_other_copy_between(
    ends: Ends,
) -> None:
    device, part = ends.receiver.device, {"stream": "s", "ordered": False, "writes": [2]}

    def parts(names: Sequence[str]) -> None:
        found = [
            device.transfer(lambda: None, **{**part, "stream": f"{at}"}, part_of=name)
            for at, name in enumerate(names)
        ]
        device.submitted += 1
        for each in reversed(found):
            device.wait(each)

    parts(["r", "r"])
    assert ends.findings.wrong is None
    parts(["r", "q"])
    assert ends.findings.wrong is not None
    assert ends.findings.wrong.property == "blocks_in_flight_are_not_reused"


def test_what_one_worker_loses_another_one_keeps() -> None:
    words = [np.ones((BLOCKS, SIZE, 2), np.uint64) for _ in range(2)]
    layers = [Layer(f"layer of rank {at}", each, at, "layer") for at, each in enumerate(words)]
    assert layers[0].salt == layers[1].salt, "both hold the same head"
    DeviceMemory([Pool(GroupKind(), SIZE, SIZE, layers)], BLOCKS).lose(2, 5, epoch=0, rank=1)
    assert (words[0] == 1).all()
    assert (words[1][2] != 1).all()
