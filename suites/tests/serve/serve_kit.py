"""Servers for tests: a small one as a process, and questions to it."""

from __future__ import annotations

import json
from typing import Any

from kvproof.harness.http import sse
from kvproof.suites.tests.lab.stress.http.process import Reply, Server

SMALL = (
    "--model", "symbolic", "--block-size", "4", "--num-blocks", "257", "--max-model-len", "512",
    "--max-tokens", "400", "--max-body-bytes", "65536", "--max-image-bytes", "4096",
    "--max-images", "3", "--max-requests", "16", "--max-waiting", "16",
)  # fmt: skip
"""A server that is full soon."""


def completion(server: Server, **fields: Any) -> Any:
    return server.complete(**{"model": "symbolic", "prompt": "once upon a time"} | fields)


def chat(server: Server, *messages: Any, **fields: Any) -> Reply:
    turns = [{"role": "user", "content": each} for each in messages]
    return server.send(
        "POST", "/v1/chat/completions", {"model": "symbolic", "messages": turns} | fields
    )


def events(reply: Reply) -> list[Any]:
    """The events of a stream, without its last one, which must be there."""
    assert reply.status == 200, reply
    assert reply.headers["content-type"].startswith("text/event-stream")
    *found, last = sse.events([reply.body])
    assert last.data == b"[DONE]"
    return [json.loads(event.data) for event in found]
