"""SGLang's host tier without SGLang: its copies in each layout, and what waits for what."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvproof.harness.adapters.sglang_engine.running import RUNNING
from kvproof.harness.contract.whole_engine import GroupKind
from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.findings import Findings, IllegalAccess
from kvproof.harness.whole_engine.memory import DeviceMemory, Layer, Pool

torch = pytest.importorskip("torch")

from kvproof.harness.adapters.sglang_engine import copy_kernels as kernels  # noqa: E402 - needs torch
from kvproof.harness.adapters.sglang_engine.copy_streams import (  # noqa: E402 - as above
    FORWARDS,
    Event,
    Stream,
    use,
)

PAGE, PAGES, LAYERS, HEADS, NUMBERS = 2, 6, 2, 2, 3
IN_POOL, ON_HOST = [2, 3, 8, 9], [4, 5, 0, 1]
"""Slots of two pages on either side."""


class Memories:
    """Keys and values of a pool and of a host in one layout, over a device of two layers."""

    def __init__(self, *host: int) -> None:
        kind = GroupKind(layers=1)
        pool = Pool(kind, PAGE, 1, [Layer("x", np.zeros((PAGE * PAGES, 1, 2), np.uint64))])
        self.device = ShadowDevice(DeviceMemory([pool], PAGES), Findings())
        self.device.transfers.delay = 1
        RUNNING.launches = SimpleNamespace(device=self.device)
        shape = (PAGE * PAGES, HEADS, NUMBERS)
        self.keys, self.values = ([torch.rand(shape) for _ in range(LAYERS)] for _ in range(2))
        self.host = torch.zeros((2, *host))
        own = [*self.keys, *self.values]
        self.tensors = {each.data_ptr(): each for each in own}
        self.in_pool = dict.fromkeys(self.tensors, "")
        self.page = PAGE
        RUNNING.tier = self

    def memory_of(self, tensor: Any) -> str:
        return self.in_pool[tensor.data_ptr()]

    @staticmethod
    def pointers(tensors: Any) -> Any:
        return torch.tensor([each.data_ptr() for each in tensors])


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    RUNNING.launches = RUNNING.tier = None
    FORWARDS.take_awaited()


def _back_up(memories: Memories, layout: str) -> None:
    pool, host = torch.tensor(IN_POOL), torch.tensor(ON_HOST)
    keys, values, (above, below) = memories.keys, memories.values, memories.host
    given = {"src_indices": pool, "dst_indices": host}
    pointers = {"src_k_layers": memories.pointers(keys), "src_v_layers": memories.pointers(values)}
    first = {"dst_k": above, "dst_v": below, "num_layers": LAYERS}
    if layout == "layer_first":
        for each in (*above, *below):
            memories.tensors[each.data_ptr()] = each
        into = {"dst_k_layers": memories.pointers(above), "dst_v_layers": memories.pointers(below)}
        kernels.transfer_kv_all_layer(**given, **pointers, **into)
    elif layout == "page_first":
        kernels.transfer_kv_all_layer_lf_pf(**given, **pointers, **first)
    elif layout == "page_head":
        kernels.transfer_kv_all_layer_lf_ph(**given, **pointers, **first, page_size=PAGE)
    elif layout == "direct":
        into = {"src_layers": [*keys, *values], "dst_layers": [*above, *below]}
        kernels.transfer_kv_direct(**given, **into)
    else:
        kernels.transfer_kv_all_layer_direct_lf_pf(
            **given, src_ptrs=[*keys, *values], dst_ptrs=[above, below], page_size=PAGE
        )


def _load(memories: Memories, layout: str, layer: int) -> None:
    pool, host = torch.tensor(IN_POOL), torch.tensor(ON_HOST)
    key, value, (above, below) = memories.keys[layer], memories.values[layer], memories.host
    given = {"src_indices": host, "dst_indices": pool}
    into = {"dst_k": key, "dst_v": value}
    whole = {"src_k": above, "src_v": below, "layer_id": layer}
    if layout == "layer_first":
        kernels.transfer_kv_per_layer(**given, **into, src_k=above[layer], src_v=below[layer])
    elif layout == "page_first":
        kernels.transfer_kv_per_layer_pf_lf(**given, **into, **whole)
    elif layout == "page_head":
        kernels.transfer_kv_per_layer_ph_lf(**given, **into, **whole, page_size=PAGE)
    elif layout == "direct":
        sides = {"src_layers": [above[layer], below[layer]], "dst_layers": [key, value]}
        kernels.transfer_kv_direct(**given, **sides)
    else:
        kernels.transfer_kv_per_layer_direct_pf_lf(
            **given, src_ptrs=[above, below], dst_ptrs=[key, value], layer_id=layer, page_size=PAGE
        )


LAYOUTS = {
    "layer_first": (LAYERS, PAGE * PAGES, HEADS, NUMBERS),
    "page_first": (PAGE * PAGES, LAYERS, HEADS, NUMBERS),
    "page_head": (PAGES, HEADS, PAGE, LAYERS, NUMBERS),
    "direct": (LAYERS, PAGE * PAGES, HEADS, NUMBERS),
    "page_first_direct": (PAGES, LAYERS, PAGE, HEADS, NUMBERS),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_come_back_from_the_host_as_they_were(layout: str) -> None:
    memories = Memories(*LAYOUTS[layout])
    before = [each.clone() for each in (*memories.keys, *memories.values)]
    _back_up(memories, layout)
    assert not memories.host.any()  # the copy is under way
    memories.device.end_transfers()
    moved = 2 * LAYERS * len(IN_POOL) * HEADS * NUMBERS
    assert int((memories.host != 0).sum()) == moved
    for each in (*memories.keys, *memories.values):
        each.zero_()
    for layer in range(LAYERS):
        _load(memories, layout, layer)
    memories.device.end_transfers()
    for each, old in zip((*memories.keys, *memories.values), before, strict=True):
        assert torch.equal(each[IN_POOL], old[IN_POOL])
        assert int((each != 0).sum()) == len(IN_POOL) * HEADS * NUMBERS


def test_a_copy_of_slots_that_no_pool_has_is_a_finding() -> None:
    memories = Memories(*LAYOUTS["page_first"])
    with pytest.raises(IllegalAccess, match="99"):
        kernels.transfer_kv_per_layer_pf_lf(
            src_k=memories.host[0], src_v=memories.host[1], dst_k=memories.keys[0],
            dst_v=memories.values[0], layer_id=0, src_indices=torch.tensor([99]),
            dst_indices=torch.tensor([1]),
        )  # fmt: skip


def _launch(memories: Memories) -> None:
    memories.device.launch([])


def test_a_copy_waits_for_forwards_behind_a_fence_alone() -> None:
    memories = Memories(*LAYOUTS["page_first"])
    memories.device.lag = 9
    stream, foreign = Stream(), object()
    _launch(memories)
    with use(stream):
        _back_up(memories, "page_first")
        memories.device.end_transfers()
        assert memories.device.executed == 0
        stream.wait_stream(foreign)  # that of the forwards
        _back_up(memories, "page_first")
    memories.device.end_transfers()
    assert memories.device.executed == 1


def test_a_copy_that_nothing_keeps_ends_at_once() -> None:
    memories, stream = Memories(*LAYOUTS["page_first"]), Stream()
    memories.device.lag, memories.device.transfers.delay = 9, 0
    _launch(memories)
    with use(stream):
        _back_up(memories, "page_first")
        assert memories.host.any()
        stream.wait_stream(object())
        _back_up(memories, "page_first")
    assert len(memories.device.transfers.pending) == 1  # it waits for the launch


def test_an_event_is_done_when_the_copies_before_it_are() -> None:
    memories, stream, event = Memories(*LAYOUTS["page_first"]), Stream(), Event()
    assert event.query()
    with use(stream):
        _back_up(memories, "page_first")
        event.record()
        _back_up(memories, "page_first")
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert len(memories.device.transfers.pending) == 1
    stream.synchronize()
    assert not memories.device.transfers.pending


def test_a_forward_waits_for_the_copies_whose_events_it_has_taken() -> None:
    memories, stream, event = Memories(*LAYOUTS["page_first"]), Stream(), Event()
    with use(stream):
        _load(memories, "page_first", 0)
        event.record()
    event.wait()  # in the stream of the forwards
    (awaited,) = FORWARDS.take_awaited()
    assert (awaited.done, FORWARDS.take_awaited()) == (False, [])
    other = Stream()
    event.wait(other)
    with use(other):
        _back_up(memories, "page_first")
    other.synchronize()  # its copy reads after the load that it waits for
    assert awaited.done


def test_a_page_that_is_written_while_a_copy_reads_it_is_a_finding() -> None:
    memories = Memories(*LAYOUTS["page_first"])
    _back_up(memories, "page_first")
    _launch(memories)
    memories.device.memory.marks[""].whole([1], memories.device.submitted)
    memories.device.end_transfers()
    wrong = memories.device.findings.wrong
    assert wrong is not None
    assert wrong.property == "blocks_in_flight_are_not_reused"
