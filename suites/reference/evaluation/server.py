"""The OpenAI server of the suites and the tests: the transport, a prefix cache, prepared answers.

The component suite sets one answer at a time. Servers of tests derive a handler with a script.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, NamedTuple, TypeVar


class PreparedAnswer(NamedTuple):
    """The next answer."""

    status: int
    text: str
    reason: str
    usage: dict[str, Any]


class ReceivedRequest(NamedTuple):
    path: str
    body: dict[str, Any]


class Server(ThreadingHTTPServer):
    """Listens on a port of this machine; 0: any free one."""

    daemon_threads = True
    request_queue_size = 64
    prepared: PreparedAnswer
    received: ReceivedRequest

    def __init__(self, handler: type[Handler], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self.lock = threading.Lock()
        self.blocks: set[int] = set()

    def server_bind(self) -> None:
        """Bind without a look-up of the host's name, which takes seconds on some machines."""
        TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client may hang up; everything else is a mistake of the script."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def hit(
        self, prompt: str | tuple[Any, ...], block: int, salt: str = "", *, on: bool = True
    ) -> int:
        """Characters or tokens of the longest cached prefix, none unless `on`.

        All whole blocks of the prompt are cached then.
        """
        found, chain = 0, hash(salt)
        with self.lock:
            for end in range(block, len(prompt) + 1, block):
                chain = hash((chain, prompt[end - block : end]))
                on = on and chain in self.blocks
                found = end if on else found
                self.blocks.add(chain)
        return found


class Handler(BaseHTTPRequestHandler):
    """Serves the prepared answer; pieces of an answer for the handlers of tests."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two pieces, the second would wait
    server: Server

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self.get()

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"] or 0))
        with suppress(BrokenPipeError, ConnectionResetError):
            self.post(data)

    def get(self) -> None:
        self.send_json(404, {})

    def post(self, data: bytes) -> None:
        body = json.loads(data)
        prepared, streams = self.server.prepared, bool(body.get("stream"))
        self.server.received = ReceivedRequest(self.path, body)
        data = _streamed(prepared) if streams else json.dumps(_completion(prepared)).encode()
        events = streams and prepared.status == 200
        self.send(prepared.status, data, "text/event-stream" if events else "application/json")

    def send_json(self, status: int, value: object) -> None:
        self.send(status, json.dumps(value).encode())

    def send(
        self, status: int, data: bytes, kind: str = "application/json", missing: int = 0
    ) -> None:
        """`missing`: announced bytes that never come."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data) + missing))
        self.end_headers()
        self.wfile.write(data)

    def send_events(self) -> None:
        """Begin a stream of `send_event`; `send_chunk(b"")` ends it."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send_event(self, value: dict[str, Any]) -> None:
        self.send_chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def send_chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


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
    server = Server(Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def running() -> Server:
    """Return the server of this process; it ends with the process."""
    return _running(os.getpid())


S = TypeVar("S", bound=Server)


@contextmanager
def serving(server: S) -> Iterator[S]:
    """Serve in a thread of this process."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
