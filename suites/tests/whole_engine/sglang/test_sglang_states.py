"""SGLang's states without SGLang: its plan of checkpoints, its changes of slots, their checks."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvproof.harness.adapters.sglang_engine.states import CHUNK, STATE, States, use
from kvproof.harness.contract.whole_engine import (
    EngineRequest,
    GroupKind,
    Reads,
    Row,
    StateUse,
    StateWrite,
)
from kvproof.harness.whole_engine.attention import ONCE
from kvproof.harness.whole_engine.causes import STATES
from kvproof.harness.whole_engine.checks import OWNED
from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.memory import DeviceMemory, Layer, Pool
from kvproof.harness.whole_engine.requests import chain_of

PROMPT = (11, 12, 13, 14, 15, 16, 17, 18)
KIND = GroupKind(kind="state", layers=1)


class Slots:
    """Slots of a pool that are cleared and copied."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def clear_slots(self, slots: Any) -> None:
        self.done.append(f"clear {slots}")

    def copy_from(self, sources: Any, targets: Any) -> None:
        self.done.append(f"copy {sources} to {targets}")


class Numbers(list[int]):
    """A tensor of numbers, as far as it is asked for."""

    def tolist(self) -> list[int]:
        return [*self]

    def clone(self) -> Numbers:
        return Numbers(self)


def scheduler(pool: object = None, plan: object = None) -> Any:
    allocator = SimpleNamespace(size=9, alloc=lambda count: Numbers(range(1, 1 + count)))
    rows = SimpleNamespace(mamba_pool=pool or Slots(), mamba_allocator=allocator)
    backend = SimpleNamespace(linear_attn_backend=SimpleNamespace(forward_metadata=plan))
    worker = SimpleNamespace(model_runner=SimpleNamespace(attn_backend=backend))
    return SimpleNamespace(req_to_token_pool=rows, tp_worker=worker)


def test_a_batch_changes_slots_with_its_launch_and_the_host_at_once() -> None:
    pool, changed = Slots(), list[Sequence[int]]()
    states = States(scheduler(pool))
    states.changed = changed.append
    pool.copy_from(Numbers([1]), Numbers([2]))
    assert (pool.done, changed) == (["copy [1] to [2]"], [[2]])
    states.forward(lambda: pool.clear_slots(Numbers([3])))
    assert pool.done == ["copy [1] to [2]"]
    (change,) = states.before()
    change()
    assert (pool.done[1:], changed[1:], states.before()) == (["clear [3]"], [[3]], [])


def test_slots_that_are_handed_out_are_noted_once() -> None:
    own = scheduler()
    states = States(own)
    own.req_to_token_pool.mamba_allocator.alloc(2)
    assert (states.given(), states.given()) == ({1, 2}, set())


def forward(*, decode: bool, **more: Any) -> Any:
    mode = SimpleNamespace(is_decode=lambda: decode)
    return SimpleNamespace(forward_mode=mode, batch_size=2, **more)


def test_a_decoded_checkpoint_is_the_state_at_the_end() -> None:
    plan = SimpleNamespace(has_mamba_track_mask=True, mamba_track_indices=[5, 6])
    states = States(scheduler(plan=plan))
    own = forward(decode=True, mamba_track_mask=Numbers([0, 1]), seq_lens=[7, 8])
    assert states.checkpoints(own) == [[], [StateWrite(6, 8)]]


def test_a_prompts_checkpoint_is_an_inner_state_or_that_of_its_end() -> None:
    # the first row computes 8 tokens after 4, the second one 11 from the beginning
    plan = SimpleNamespace(
        has_mamba_track_mask=True,
        mamba_cache_indices=Numbers([1, 2]),
        mamba_track_indices=[5, 6],
        mamba_track_mask_indices=Numbers([0, 1]),
        track_ssm_h_src=Numbers([8 // CHUNK + 2]),
        track_ssm_h_dst=Numbers([6]),
        track_ssm_final_src=Numbers([1]),
        track_ssm_final_dst=Numbers([5]),
        track_conv_indices=[[6, 7], [8 + 6, 8 + 7]],
    )
    plan.track_conv_indices = SimpleNamespace(tolist=lambda: [[6, 7], [14, 15]])
    lengths = {"extend_seq_lens": Numbers([8, 11]), "extend_prefix_lens": Numbers([4, 0])}
    found = States(scheduler(plan=plan)).checkpoints(forward(decode=False, **lengths))
    assert found == [
        [StateWrite(5, 12, "matrix"), StateWrite(5, 12, "window")],
        [StateWrite(6, 2 * CHUNK, "matrix"), StateWrite(6, 8, "window")],
    ]


@pytest.fixture
def device() -> ShadowDevice:
    layers = [
        Layer(f"state, {part}", np.zeros((9, 2), np.uint64), part=part)
        for part in ("matrix", "window")
    ]
    found = ShadowDevice(DeviceMemory([Pool(KIND, 4, 1, layers, memory=STATE)], 9), Findings())
    for name in ("r1", "r2"):
        request = EngineRequest(name, PROMPT)
        found.register(request, chain_of(request, [KIND]))
    return found


def row(name: str, start: int, end: int, states: StateUse, owned: Sequence[int]) -> Row:
    nothing = np.zeros(0, np.int64)
    reads = Reads(nothing, nothing, owned, use=states)
    return Row(
        name, start, PROMPT[start:end], drafts=0, samples=False, device_start=False,
        fresh=start == 0 or name == "r2", groups=(reads,),
    )  # fmt: skip


def test_a_row_goes_on_from_its_own_state(device: ShadowDevice) -> None:
    device.launch([row("r1", 0, 4, use(1, 4, ()), [1])])
    device.launch([row("r1", 4, 8, use(1, 8, ()), [1])])
    assert device.findings.wrong is None
    assert device.findings.checks[STATES] == len(device.memory.pools[0].layers)


@pytest.mark.parametrize("part", ["matrix", "window"])
def test_a_checkpoint_of_another_length_is_found_in_either_part(
    device: ShadowDevice, part: str
) -> None:
    marks = [StateWrite(2, 4, each) for each in ("matrix", "window") if each != part]
    device.launch([row("r1", 0, 6, use(1, 6, [*marks, StateWrite(2, 3, part)]), [1, 2])])
    device.launch([row("r2", 4, 8, use(2, 8, ()), [2])])
    wrong = device.findings.wrong
    assert wrong is not None
    assert wrong.property == STATES
    assert "it is one of 3 tokens" in wrong.sentence


def test_two_rows_of_a_launch_do_not_share_a_slot(device: ShadowDevice) -> None:
    rows = [row(name, 0, 4, use(slot, 4, [StateWrite(3, 4)]), [slot, 3])
            for name, slot in (("r1", 1), ("r2", 2))]  # fmt: skip
    device.launch(rows)
    assert device.findings.wrong is not None
    assert device.findings.wrong.property == ONCE


def test_a_row_uses_the_slots_that_its_request_holds(device: ShadowDevice) -> None:
    device.launch([row("r1", 0, 4, use(1, 4, [StateWrite(2, 4)]), [1, 3])])
    assert device.findings.wrong is not None
    assert device.findings.wrong.property == OWNED
