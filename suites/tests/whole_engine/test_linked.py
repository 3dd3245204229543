"""The wire between two engines: copies, messages, leases."""

from __future__ import annotations

import numpy as np
import pytest

from kvproof.harness.whole_engine.clock import VirtualClock
from kvproof.harness.whole_engine.content import Words
from kvproof.harness.whole_engine.contract import GroupKind
from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.linked.wire import DROPPED, HELD, TWICE, Endpoint, Piece, Wire
from kvproof.harness.whole_engine.memory import Layer, Pool, ShadowMemory

BLOCKS, SIZE = 4, 2


class Ends:
    """Two devices and the wire between them; `held` is what the sender holds."""

    def __init__(self) -> None:
        self.findings = Findings()
        self.clock = VirtualClock(tick_s=1.0)
        self.wire = Wire(self.findings, self.clock)
        self.held = {1, 2}
        self.told: list[str] = []
        self.words, self.sender = self._end()
        self.received, self.receiver = self._end()
        self.words[1:3] = 7

    def _end(self) -> tuple[Words, Endpoint]:
        words = np.zeros((BLOCKS, SIZE, 2), np.uint64)
        pool = Pool(GroupKind(), SIZE, SIZE, [Layer("layer", words)])
        device = ShadowDevice(ShadowMemory([pool], BLOCKS), self.findings)
        return words, Endpoint(device, lambda _: self.held)

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
    assert ends.receiver.device.memory.received.tolist() == [False, False, True, True]
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


@pytest.mark.parametrize(("renewed", "over"), [(False, True), (True, False)])
def test_a_lease_ends_unless_it_is_renewed(ends: Ends, *, renewed: bool, over: bool) -> None:
    ends.wire.promise("r", 30)
    ends.clock.tick = 29
    if renewed:
        ends.wire.renew("r", 20)
    ends.clock.tick = 31
    ends.wire.renew("r", 20)
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
