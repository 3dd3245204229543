"""A server in a thread of this process, with one scripted answer at a time."""

from __future__ import annotations

import functools
import json
import os
import threading
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any, NamedTuple


class PreparedAnswer(NamedTuple):
    """The next answer."""

    status: int
    text: str
    reason: str
    usage: dict[str, Any]


class ReceivedRequest(NamedTuple):
    path: str
    body: dict[str, Any]


class Server(TCPServer):
    prepared: PreparedAnswer
    received: ReceivedRequest

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    disable_nagle_algorithm = True  # headers and body are two pieces, the second would wait

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prepared, streams = self.server.prepared, bool(body.get("stream"))
        self.server.received = ReceivedRequest(self.path, body)
        data = _streamed(prepared) if streams else json.dumps(_completion(prepared)).encode()
        kind = "text/event-stream" if streams and prepared.status == 200 else "application/json"
        self.send_response(prepared.status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _completion(prepared: PreparedAnswer) -> dict[str, Any]:
    message = {"role": "assistant", "content": prepared.text}
    choice = {"index": 0, "message": message, "finish_reason": prepared.reason}
    return {"choices": [choice], "usage": prepared.usage}


def _streamed(prepared: PreparedAnswer) -> bytes:
    """One piece for each character, the finish reason, the usage, the end."""
    choices: list[dict[str, Any]] = [{"index": 0, "delta": {"content": c}} for c in prepared.text]
    choices.append({"index": 0, "delta": {}, "finish_reason": prepared.reason})
    events: list[dict[str, Any]] = [{"choices": [choice]} for choice in choices]
    events.append({"choices": [], "usage": prepared.usage})
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


@functools.cache
def _running(_: int) -> Server:
    server = Server(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def running() -> Server:
    """Return the server of this process; it ends with the process."""
    return _running(os.getpid())
