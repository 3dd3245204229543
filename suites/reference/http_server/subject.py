"""The server under test: all of `kvproof serve` above the socket, stepped by hand."""

from __future__ import annotations

import asyncio

from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.engine.engine import Engine, Output
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.server import engine_loop
from kvproof.reference.server.app import make_app
from kvproof.reference.server.options import ServerConfig
from kvproof.reference.server.service import Service
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.reference.http_server import logprob_model as scored
from kvproof.suites.reference.http_server.deterministic_loop import Client, event_loop
from kvproof.suites.reference.metrics.log import captured

MODEL = "symbolic"
MAX_LEN = 96


class InstrumentedEngine(Engine):
    def step(self) -> list[Output]:
        """See `Engine`."""
        outputs = super().step()
        assert isinstance(self.model, scored.InstrumentedModel)
        self.model.said |= {output.request_id: output.tokens for output in outputs}
        return outputs


class Stepped(Service):
    def start(self) -> None:
        """See `Service`."""
        self._asyncio = asyncio.get_running_loop()

    def turn(self) -> None:
        self.loop.between_steps(_nothing)
        self.loop.turn()


def _nothing() -> None:
    """Wake the engine, which has no thread here."""


class Subject:
    """A server with its language, and the loop that carries its clients."""

    def __init__(self, config: Config) -> None:
        self.loop = event_loop()
        self.loop.clear()
        cache = CacheConfig(
            config["num_blocks"],
            block_size=config["block_size"],
            max_requests=config["max_requests"],
            cache_partial_blocks=config["partial_blocks"],
        )
        self.language = scored.Scored(cache, max_len=MAX_LEN, answers=config["vocabulary"])
        self.engine = InstrumentedEngine(
            EngineConfig(
                cache,
                max_batch_tokens=config["max_batch_tokens"],
                steps_in_flight=config["steps_in_flight"],
                poison_freed=True,
            ),
            self.language.model,
        )
        self.service = Stepped(
            self.engine, self.language, ServerConfig(max_waiting=config["max_waiting"])
        )
        self._app = make_app(self.service, model=MODEL)
        self.loop.call_soon(self.service.start)
        self.loop.settle()

    def ask(self, path: str, body: object = None) -> Client:
        """Send a request, and go on until its client waits for the engine or has its answer."""
        client = Client(self.loop, self._app, path, body)
        self.loop.settle()
        return client

    def leave(self, client: Client) -> None:
        """Let a client close its connection."""
        client.leave()
        self.loop.settle()

    def turn(self) -> None:
        with captured(engine_loop.LOG):
            self.service.turn()
        self.loop.settle()
