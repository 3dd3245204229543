"""The adapter of LMDeploy's loop without LMDeploy: event loop, clients, launches, traits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvproof.harness.adapters.lmdeploy_engine.launches import REQUEST, Dispatch, Launches
from kvproof.harness.adapters.lmdeploy_engine.loop import MOST_HANDLES, VirtualLoop
from kvproof.harness.adapters.lmdeploy_engine.matches import Matches
from kvproof.harness.adapters.lmdeploy_engine.requests import Clients
from kvproof.harness.adapters.lmdeploy_engine.traits import traits
from kvproof.harness.contract.whole_engine import EngineConfig, EngineRequest, GroupKind, Output
from kvproof.harness.whole_engine.checks import OWNED
from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.findings import Findings, IllegalAccess
from kvproof.harness.whole_engine.memory import DeviceMemory, Layer, Pool
from kvproof.harness.whole_engine.requests import chain_of
from kvproof.suites.framework.rows import Factors
from kvproof.suites.whole_engine.table import factors

PROMPTS = {"r1": (11, 12, 13, 14, 15, 16), "r2": (21, 22, 23)}


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    found = VirtualLoop()
    yield found
    if not found.is_closed():
        found.end()


def test_time_moves_to_the_next_timer_and_no_real_time_passes(loop: VirtualLoop) -> None:
    seen: list[tuple[str, int]] = []

    async def sleep(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, round(loop.time())))

    start = round(loop.time())
    for name, seconds in (("late", 900.0), ("soon", 20.0)):
        loop.create_task(sleep(name, seconds))
    loop.run(lambda: len(seen) == 1, 1000.0)
    assert seen == [("soon", start + 20)]
    loop.run(lambda: False, 10.0)
    assert len(seen) == 1, "the other timer is further away than the run goes"
    loop.run(lambda: False, 1000.0)
    assert seen[1] == ("late", start + 900)


def test_a_timer_fires_although_other_handles_are_always_ready(loop: VirtualLoop) -> None:
    fired: list[int] = []

    def busy() -> None:
        loop.call_soon(busy)

    loop.call_soon(busy)
    loop.call_later(0.0001, lambda: fired.append(1))
    loop.call_later(0.0001, lambda: fired.append(2)).cancel()
    loop.run(lambda: bool(fired), 1.0)
    assert fired == [1]
    assert loop.run(lambda: False, 1.0) == MOST_HANDLES
    loop._ready.clear()  # type: ignore[attr-defined]


def test_handles_run_in_the_order_of_asyncio(loop: VirtualLoop) -> None:
    def order(run: Any) -> list[str]:
        seen: list[str] = []

        async def worker(name: str) -> None:
            for number in range(3):
                seen.append(f"{name}{number}")
                await asyncio.sleep(0)

        async def both() -> None:
            await asyncio.gather(worker("a"), worker("b"))

        run(both)
        return seen

    def on_ours(both: Any) -> None:
        loop.create_task(both())
        loop.run(lambda: False, 0.0)

    assert order(on_ours) == order(lambda both: asyncio.run(both()))


class Server:
    """An engine whose answers and cancellations are scripted."""

    def __init__(self, loop: VirtualLoop, answers: Sequence[Any]) -> None:
        self.loop, self.answers = loop, answers
        self.calls: list[str] = []

    def create_instance(self) -> Any:
        return SimpleNamespace(async_stream_infer=self.stream, async_cancel=self.cancel)

    async def stream(self, session: int, prompt: list[int], _: Any) -> AsyncIterator[Any]:
        try:
            for answer in self.answers:
                await asyncio.sleep(1)
                yield answer
        finally:
            self.calls.append(f"{session} of {len(prompt)} left")

    async def cancel(self, session: int) -> None:
        self.calls.append(f"{session} is cancelled")


def _answer(status: str, tokens: list[int], cached: int) -> Any:
    metrics = SimpleNamespace(cached_tokens=cached)
    return SimpleNamespace(
        status=SimpleNamespace(name=status), token_ids=tokens, req_metrics=metrics
    )


def _clients(loop: VirtualLoop, answers: Sequence[Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    server = Server(loop, answers)
    monkeypatch.setattr(Clients, "_sampling", lambda *_: None)
    return server, Clients(server, loop, EngineConfig())


def test_answers_come_with_the_cached_tokens_of_the_first(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [_answer("SUCCESS", [7], 4), _answer("FINISH", [8, 9], 0)]
    _, clients = _clients(loop, answers, monkeypatch)
    clients.submit(EngineRequest("r1", PROMPTS["r1"]))
    assert clients.names == {1: "r1"}
    loop.run(lambda: False, 10.0)
    assert clients.outputs == [
        Output("r1", (7,), "", {}, 4),
        Output("r1", (8, 9), "stop", {}, -1),
    ]
    assert not clients.live


def test_every_other_client_cancels_and_the_rest_leaves(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, clients = _clients(loop, [_answer("SUCCESS", [7], 0)] * 9, monkeypatch)
    for name, prompt in PROMPTS.items():
        clients.submit(EngineRequest(name, prompt))
    loop.run(lambda: False, 2.0)
    clients.abort("r1")
    clients.abort("r2")
    loop.run(lambda: False, 0.1)
    assert server.calls == ["1 is cancelled", "2 of 3 left"]
    assert [*clients.live] == ["r1"], "a cancelled request is told by the engine"
    clients.abort("r2")  # it has gone


def test_the_exception_of_a_client_is_kept(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, clients = _clients(loop, [object()], monkeypatch)
    clients.submit(EngineRequest("r1", PROMPTS["r1"]))
    loop.run(lambda: False, 2.0)
    assert isinstance(clients.failed, AttributeError)


class Agent:
    """Launches of two requests over blocks of four tokens in kernel blocks of two."""

    def __init__(self) -> None:
        pytest.importorskip("torch")
        kind = GroupKind(layers=1)
        layer = Layer("layer 0", np.zeros((16, 2, 2), np.uint64))
        self.findings = Findings()
        memory = DeviceMemory([Pool(kind, 4, 2, [layer])], 8)
        self.device = ShadowDevice(memory, self.findings)
        self.chains = {}
        for name, prompt in PROMPTS.items():
            request = EngineRequest(name, prompt)
            self.chains[name] = chain_of(request, [kind])
            self.device.register(request, self.chains[name])
        names = {1: "r1", 2: "r2"}
        self.launches = Launches(self.device, names, None, Matches(None, names, {}))

    def dispatch(self, **changed: Any) -> None:
        """Send both prompts: r1 in blocks 1 and 2, r2 in block 3."""
        owned = {"r1": [1, 2], "r2": [3]}
        given = {"requests": ["r1", "r2"], "owned": owned, "samples": True, "fresh": True}
        self.launches.waiting.append(Dispatch(**{**given, **changed}))

    def context(self, **changed: Any) -> Any:
        """Return the model's context for both prompts."""
        import torch

        given = {
            "q_seqlens": [6, 3],
            "kv_seqlens": [6, 3],
            "input_ids": [[*PROMPTS["r1"], *PROMPTS["r2"]]],
            "position_ids": [[0, 1, 2, 3, 4, 5, 0, 1, 2]],
            "block_offsets": [[2, 3, 4, 5], [6, 7, 0, 1]],
        }
        names = changed.pop("names", ["r1", "r2"])
        metas = [{REQUEST: name} for name in names]
        tensors = {name: torch.tensor(each) for name, each in {**given, **changed}.items()}
        return SimpleNamespace(**tensors, model_metas=metas)

    @property
    def broken(self) -> str:
        """The property that was found broken; empty: none."""
        return self.findings.wrong.property if self.findings.wrong else ""


@pytest.fixture
def agent() -> Agent:
    return Agent()


def test_a_batch_is_answered_at_the_end_of_each_row(agent: Agent) -> None:
    agent.dispatch()
    answers = agent.launches.launch(agent.context())
    for chain in agent.chains.values():
        chain.ensure(7)
    expected = [agent.chains["r1"].tokens[6], agent.chains["r2"].tokens[3]]
    assert (answers[5], answers[8]) == tuple(expected)
    assert answers[:5] == [0] * 5
    assert not agent.broken


def test_a_chunk_in_the_middle_answers_nothing(agent: Agent) -> None:
    agent.dispatch(samples=False)
    assert agent.launches.launch(agent.context()) == [0] * 9
    assert not agent.broken


def test_a_table_of_another_request_is_found(agent: Agent) -> None:
    agent.dispatch()
    agent.launches.launch(agent.context(block_offsets=[[6, 7, 4, 5], [6, 7, 0, 1]]))
    assert agent.broken == OWNED


def test_requests_that_the_engine_relays_to_other_rows_are_found(agent: Agent) -> None:
    agent.dispatch()
    agent.launches.launch(agent.context(names=["r2", "r1"]))
    assert agent.broken


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"position_ids": [[1, 2, 3, 4, 5, 6, 0, 1, 2]]}, "computes positions"),
        ({"block_offsets": [[2, 3, 99, 100], [6, 7, 0, 1]]}, "the pool has 32"),
        ({"block_offsets": [[2, 3], [6, 7]]}, "a table of 2 blocks"),
        ({"names": ["r1"]}, "2 rows has 1 metas"),
        ({"q_seqlens": [6, 4]}, "9 tokens are computed in rows of"),
    ],
)
def test_what_a_kernel_cannot_do_is_illegal(
    agent: Agent, wrong: dict[str, Any], message: str
) -> None:
    agent.dispatch()
    with pytest.raises(IllegalAccess, match=message):
        agent.launches.launch(agent.context(**wrong))


def test_a_result_is_as_late_as_the_history_says(agent: Agent) -> None:
    launches, device = agent.launches, agent.device
    device.lag, device.tick = 2, 5
    recorded = launches.now()
    assert not launches.has_ended(recorded)
    device.tick = 7
    assert launches.has_ended(recorded)
    assert launches.polls == 1


def test_drawn_kernel_blocks_divide_their_block_and_are_powers_of_two() -> None:
    table: Factors = factors(traits())
    choice = random.Random(1)
    for _ in range(300):
        row = {name: choice.choice(levels) for name, levels in table.levels.items()}
        allowed = not any(
            all(row[name] in each.when[name] for name in each.when) for each in table.excluded
        )
        legal = (row["block size"], row["kernel blocks"]) not in {
            ("16", "parts"),
            ("48", "whole"),
        }
        assert legal or not allowed
