"""Wires without a server, for tests: what comes back is what a test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from kvproof.harness.http.sse import ServerEvent, events
from kvproof.suites.probe.server_connection import Budget, ServerConnection

METRICS, MODELS, SCHEMA = "/metrics", "/models", "/openapi.json"


class Reply(NamedTuple):
    status: int
    data: bytes

    def pieces(self) -> Iterator[bytes]:
        yield self.data

    def events(self) -> Iterator[ServerEvent]:
        return events(self.pieces())


class FakeWire:
    """`reply`: path and body -> status and bytes."""

    def __init__(self, reply: Callable[[str, dict[str, Any]], tuple[int, bytes]]) -> None:
        self._reply = reply

    @contextmanager
    def exchange(
        self, method: str, path: str, body: bytes, *, timeout: float, whole: bool = False
    ) -> Iterator[Reply]:
        yield Reply(*self._reply(path, json.loads(body or b"{}")))


def line_to(reply: Callable[[str, dict[str, Any]], tuple[int, bytes]]) -> ServerConnection:
    return ServerConnection(FakeWire(reply), Budget(requests=10_000, seconds=600))


def completion(text: str = "ok", *, prompt: int = 0, cached: int = 0, **more: Any) -> bytes:
    usage = {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}
    choice = {"index": 0, "text": text, "finish_reason": "length"} | more
    return json.dumps({"choices": [choice], "usage": usage}).encode()
