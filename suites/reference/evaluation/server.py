"""A server in a thread of this process, with one scripted answer at a time."""

from __future__ import annotations

import functools
import json
import os
import threading
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any, NamedTuple


class Said(NamedTuple):
    """The next answer."""

    status: int
    text: str
    reason: str
    usage: dict[str, Any]


class Asked(NamedTuple):
    path: str
    body: dict[str, Any]


class Server(TCPServer):
    said: Said
    asked: Asked

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    disable_nagle_algorithm = True  # headers and body are two pieces, the second would wait

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said, streams = self.server.said, bool(body.get("stream"))
        self.server.asked = Asked(self.path, body)
        data = _streamed(said) if streams else json.dumps(_completion(said)).encode()
        kind = "text/event-stream" if streams and said.status == 200 else "application/json"
        self.send_response(said.status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _completion(said: Said) -> dict[str, Any]:
    message = {"role": "assistant", "content": said.text}
    choice = {"index": 0, "message": message, "finish_reason": said.reason}
    return {"choices": [choice], "usage": said.usage}


def _streamed(said: Said) -> bytes:
    """One piece for each character, the finish reason, the usage, the end."""
    choices: list[dict[str, Any]] = [{"index": 0, "delta": {"content": c}} for c in said.text]
    choices.append({"index": 0, "delta": {}, "finish_reason": said.reason})
    events: list[dict[str, Any]] = [{"choices": [choice]} for choice in choices]
    events.append({"choices": [], "usage": said.usage})
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
