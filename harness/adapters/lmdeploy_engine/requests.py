"""Requests as LMDeploy's clients send them: one EngineInstance each, as its server has it.

A request is a session of its own, as from 0.15 on every request of the server and the pipeline is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvproof.harness.contract.whole_engine import EngineConfig, EngineRequest, Output

_ENDS = {"FINISH": "stop", "CANCEL": "abort"}


@dataclass
class Client:
    """The client of one request."""

    name: str
    session: int
    instance: Any
    task: Any = None
    reported: bool = False
    """Whether the number of cached tokens of its prompt was in an answer."""


@dataclass
class Clients:
    """The clients of one engine, on its event loop."""

    engine: Any
    loop: Any
    config: EngineConfig
    outputs: list[Output] = field(default_factory=list)
    live: dict[str, Client] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    """Session -> request."""
    failed: BaseException | None = None
    """The exception that a client ended with."""

    def submit(self, request: EngineRequest) -> None:
        """Send a request; its client takes the answers as they come."""
        client = Client(request.id, len(self.names) + 1, self.engine.create_instance())
        self.names[client.session] = request.id
        self.live[request.id] = client
        client.task = self.loop.create_task(self._follow(client, request))
        client.task.add_done_callback(lambda task: self._ended(client, task))

    def _ended(self, client: Client, task: Any) -> None:
        del self.live[client.name]
        if not task.cancelled() and task.exception() is not None:
            self.failed = task.exception()

    async def _follow(self, client: Client, request: EngineRequest) -> None:
        async for answer in client.instance.async_stream_infer(
            client.session, list(request.prompt), self._sampling(request)
        ):
            self.outputs.append(self._output(client, answer))

    def _sampling(self, request: EngineRequest) -> Any:
        from lmdeploy.messages import GenerationConfig

        return GenerationConfig(
            max_new_tokens=min(request.answers, self.config.max_length - len(request.prompt)),
            top_k=1,
            temperature=1.0,
            stop_token_ids=[request.stop] if request.stop >= 0 else [],
            random_seed=0,
        )

    def _output(self, client: Client, answer: Any) -> Output:
        status = answer.status.name
        metrics = answer.req_metrics
        cached = -1
        if metrics is not None and answer.token_ids and not client.reported:
            client.reported, cached = True, int(metrics.cached_tokens)
        finished = "" if status == "SUCCESS" else _ENDS.get(status, "error")
        return Output(client.name, tuple(map(int, answer.token_ids)), finished, {}, cached)

    def abort(self, name: str) -> None:
        """End a request as a server does when its client has gone: every other one is cancelled.

        The rest stops reading, and its session ends.
        """
        client = self.live.get(name)
        if client is None:
            return
        if client.session % 2:
            self.loop.create_task(client.instance.async_cancel(client.session))
        else:
            client.task.cancel()
