"""The adapter of SGLang's loop without SGLang: its loop by iterations, its launches, its traits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvproof.harness.adapters.sglang_engine.loop import Loop
from kvproof.harness.adapters.sglang_engine.pools import FULL, WINDOW, Pools
from kvproof.harness.adapters.sglang_engine.requests import name_of, outputs, rid
from kvproof.harness.contract.whole_engine import EngineRequest, GroupKind, Output
from kvproof.harness.model.chain import VOCABULARY
from kvproof.harness.whole_engine.checks import OWNED
from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.findings import Findings, IllegalAccess
from kvproof.harness.whole_engine.memory import DeviceMemory, Layer, Pool
from kvproof.harness.whole_engine.requests import chain_of

PROMPT = (11, 12, 13, 14, 15, 16)


@pytest.fixture
def loop() -> Iterator[tuple[Loop, list[str]]]:
    """A loop that notes each iteration, and fails in the third."""
    found, seen = Loop(), list[str]()

    def run() -> None:
        for number in range(3):
            found.rest()
            seen.append(f"iteration {number}")
        raise ArithmeticError("the third one is too much")

    found.start(run)
    yield found, seen
    found.end()


def test_a_loop_runs_one_iteration_at_a_time(loop: tuple[Loop, list[str]]) -> None:
    driven, seen = loop
    assert seen == []
    driven.step()
    assert seen == ["iteration 0"]
    assert driven.call(lambda: len(seen)) == 1
    with pytest.raises(ZeroDivisionError):
        driven.call(lambda: 1 // 0)  # the caller's own fault does not end the loop
    driven.step()
    assert seen == ["iteration 0", "iteration 1"]


def test_what_a_loop_raises_is_raised_by_the_step(loop: tuple[Loop, list[str]]) -> None:
    driven, seen = loop
    driven.step()
    driven.step()
    with pytest.raises(ArithmeticError, match="too much"):
        driven.step()
    assert seen[-1] == "iteration 2"
    driven.step()  # an engine that has died takes no further step
    assert driven.call(lambda: "not called") is None


def test_no_id_is_the_beginning_of_another_one() -> None:
    assert not rid("r10").startswith(rid("r1"))
    assert name_of(rid("r10")) == "r10"


def test_messages_of_the_scheduler_are_answers() -> None:
    message = SimpleNamespace(
        rids=[rid("r1"), rid("r2")],
        output_ids=[[7], [8, 9]],
        finished_reasons=[None, {"type": "length"}],
        cached_tokens=[4, 0],
    )
    assert list(outputs(message)) == [
        Output("r1", (7,), "", {}, 4),
        Output("r2", (8, 9), "length", {}, 0),
    ]
    assert not list(outputs(SimpleNamespace(success=True)))


def _layer(kind: GroupKind, page: int) -> Layer:
    return Layer(kind.kind, np.zeros((16 * page, 1, 2), np.uint64))


def _allocator(page: int, window: int) -> Any:
    """An allocator of 15 pages; with windows each slot's peer is the one in the page after it."""
    import torch

    def pool() -> Any:
        none = lambda *_: None  # noqa: E731 - three verbs that no test calls
        return SimpleNamespace(size=15 * page, alloc=none, alloc_extend=none, alloc_decode=none)

    if not window:
        return pool()
    peers = torch.tensor([0, *range(page + 1, 15 * page + 1)])
    return SimpleNamespace(
        full_attn_allocator=pool(), swa_attn_allocator=pool(), full_to_swa_index_mapping=peers
    )


class Scheduled:
    """A scheduler of one request with a table of its own, over a device of sixteen slots."""

    def __init__(self, page: int = 1, lag: int = 0, window: int = 0) -> None:
        torch = pytest.importorskip("torch")
        from kvproof.harness.adapters.sglang_engine.launches import Launches

        self.tensor: Callable[..., Any] = torch.tensor
        kinds = [GroupKind(layers=1), *([GroupKind("window", window)] if window else [])]
        pools = [
            Pool(kind, page, 1, [_layer(kind, page)], memory=WINDOW if kind.size else FULL)
            for kind in kinds
        ]
        self.findings = Findings()
        self.device = ShadowDevice(DeviceMemory(pools, 16), self.findings, lag=lag)
        request = EngineRequest("r1", PROMPT)
        self.chain = chain_of(request, kinds)
        self.device.register(request, self.chain)
        self.table = torch.zeros((2, 16), dtype=torch.int32)
        scheduler = SimpleNamespace(
            req_to_token_pool=SimpleNamespace(req_to_token=self.table),
            token_to_kv_pool_allocator=_allocator(page, window),
        )
        self.peers = scheduler.token_to_kv_pool_allocator
        self.launches = Launches(self.device, scheduler, Pools(scheduler, page), page)
        self.native = SimpleNamespace(
            rid=rid("r1"), retraction_count=0, origin_input_ids=list(PROMPT), output_ids=[]
        )

    def run(self, tokens: list[int], start: int, slots: list[int], **changed: Any) -> Any:
        """Run one batch; the result has an event, as with overlap."""
        length = start + len(tokens)
        self.table[1, start:length] = self.tensor(slots, dtype=self.table.dtype)
        positions = changed.pop("positions", [*range(start, length)])
        decoding = start >= len(PROMPT)
        mode = SimpleNamespace(
            is_extend=lambda: not decoding,
            is_decode=lambda: decoding,
            is_target_verify=lambda: False,
        )
        forward = SimpleNamespace(
            rids=[self.native.rid],
            forward_mode=mode,
            batch_size=1,
            req_pool_indices=self.tensor([1]),
            seq_lens=self.tensor([length]),
            extend_seq_lens=self.tensor([len(tokens)]),
            out_cache_loc=self.tensor(slots),
        )
        no_drafts = SimpleNamespace(is_none=lambda: True)
        batch = SimpleNamespace(
            reqs=[self.native], forward_mode=mode, decoding_reqs=None, spec_algorithm=no_drafts
        )

        def run_batch(_: object) -> Any:
            given = self.tensor(tokens), self.tensor(positions), forward
            answer = self.launches.launch(*given)
            return SimpleNamespace(next_token_ids=self.tensor(answer), copy_done=object())

        return self.launches.run(run_batch, batch)

    @property
    def broken(self) -> str:
        """The property that was found broken; empty: none."""
        return self.findings.wrong.property if self.findings.wrong else ""


def test_a_stand_in_becomes_the_token_that_the_device_answers() -> None:
    engine = Scheduled(lag=1)
    first = engine.run([*PROMPT], 0, [1, 2, 3, 4, 5, 6])
    (stand_in,) = first.next_token_ids.tolist()
    assert stand_in >= VOCABULARY
    second = engine.run([stand_in], 6, [7])  # the relay brings it before anyone knows the token
    engine.launches.complete(engine.device.submitted)
    engine.chain.ensure(8)
    answers = [each.next_token_ids.tolist()[0] for each in (first, second)]
    assert answers == engine.chain.tokens[6:8]
    assert not engine.broken


def test_a_token_that_was_relayed_from_elsewhere_is_found() -> None:
    engine = Scheduled(lag=1)
    first = engine.run([*PROMPT], 0, [1, 2, 3, 4, 5, 6]).next_token_ids.tolist()
    engine.run(first, 6, [7])
    engine.run(first, 7, [8])  # the stand-in of the batch before the last one
    engine.launches.complete(engine.device.submitted)
    assert engine.broken == "a_launch_computes_the_requests_own_tokens"


@pytest.mark.parametrize("held", [True, False])
def test_a_table_that_changes_under_a_launch_is_found_unless_it_was_read(held: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    engine = Scheduled(lag=1)
    engine.run([*PROMPT], 0, [1, 2, 3, 4, 5, 6])
    if held:
        engine.launches.hold_tables()
    engine.table[1, 2] = 9  # the scheduler's next write
    engine.launches.complete(engine.device.submitted)
    assert engine.broken == ("" if held else OWNED)


def test_pages_are_filled_up_and_have_to_be_whole() -> None:
    engine = Scheduled(page=4)
    engine.run([*PROMPT], 0, [4, 5, 6, 7, 12, 13])
    assert not engine.broken
    other = Scheduled(page=4)
    other.run([*PROMPT], 0, [4, 5, 6, 7, 12, 14])
    assert other.broken == OWNED


def test_a_chunk_answers_nothing_and_a_retracted_request_begins_anew() -> None:
    engine = Scheduled()
    engine.run([*PROMPT[:4]], 0, [1, 2, 3, 4])
    engine.run([*PROMPT[4:]], 4, [5, 6])
    engine.native.retraction_count = 1
    engine.run([*PROMPT], 0, [7, 8, 9, 10, 11, 12])
    fresh = [launch.rows[0].fresh for launch in engine.device.recent]
    samples = [launch.rows[0].samples for launch in engine.device.recent]
    assert (fresh, samples) == ([True, False, True], [False, True, True])
    assert not engine.broken


def test_positions_beyond_the_length_and_slots_beyond_the_pool_are_illegal() -> None:
    engine = Scheduled()
    with pytest.raises(IllegalAccess, match="computes positions"):
        engine.run([11, 12], 0, [1, 2], positions=[1, 2])
    with pytest.raises(IllegalAccess, match="the pool has 16"):
        engine.run([11, 12], 0, [1, 16])


def test_windows_are_read_in_their_own_pool() -> None:
    engine = Scheduled(window=3)
    engine.run([*PROMPT], 0, [1, 2, 3, 4, 5, 6])
    full, window = engine.device.recent[0].rows[0].groups
    assert [each.table.tolist() for each in (full, window)] == [
        [1, 2, 3, 4, 5, 6],
        [2, 3, 4, 5, 6, 7],
    ]
    assert not engine.broken


@pytest.mark.parametrize(("gone", "broken"), [(4, False), (5, True)])
def test_a_window_slot_that_is_given_back_while_it_is_read_is_found(
    gone: int,
    broken: bool,  # noqa: FBT001 - a parameter of pytest
) -> None:
    engine = Scheduled(window=3)
    engine.run([*PROMPT], 0, [1, 2, 3, 4, 5, 6])
    engine.peers.full_to_swa_index_mapping[gone] = 0
    engine.chain.ensure(7)
    engine.run([engine.chain.tokens[6]], 6, [7])  # position 6 reads positions 4 to 6
    assert engine.broken == ("reads_return_own_content" if broken else "")
