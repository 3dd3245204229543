"""A scripted OpenAI server: reads documents like a perfect model, and goes wrong on command.

Its pretended prefix cache holds chains of blocks of 64 characters, so that a hit may end inside
the document. Run as a module it takes the script as a JSON object, for tests of launched servers.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kvproof.suites.tests.evaluation.eval_reader import parse, read

BLOCK = 64
"""Characters; four of them count as one token."""

SECOND = re.compile(r"omitted here.*The correct answer is \((.)\)", re.DOTALL)
"""The second prompt of a pair, with what was answered to the first."""


@dataclass
class Script:
    """How a server behaves. Faults are by the number of the request, from 0, and strike once."""

    cache: bool = True
    stale: bool = False
    """A wrong block after a hit: what was cached is read from another document."""
    noise: int = 0
    """Every so many answers differ in their text from what they were before."""
    faults: dict[int, str] = field(default_factory=dict)
    always: str = ""
    """A fault that strikes every request for the `victim`."""
    victim: str = ""
    """Part of the prompt that it strikes."""
    usage: Any = "true"
    """`true`, `none`, or what is said to be cached."""
    stream: bool = True
    models: tuple[str, ...] = ("reader",)
    health: str = "OK"
    """What /health says, with 200."""
    dies_at: int = -1
    together: int = 0
    """The first request is not answered before there are so many at once."""
    late: float = 0.0
    """Seconds until it is ready."""
    child: bool = False
    """It starts a process of its own that would outlive it."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script: Script, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.script = script
        self.lock = threading.Lock()
        self.blocks: set[tuple[str, ...] | int] = set()
        self.prompts: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.active = self.most_active = 0
        self.struck: Counter[str] = Counter()
        self.begun = time.monotonic()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client may hang up; everything else is a mistake of the script."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def take(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, str]:
        """Number of the request, and what goes wrong with it."""
        prompt = body["messages"][0]["content"]
        with self.lock:
            number = len(self.prompts)
            self.prompts.append(prompt)
            self.bodies.append(body)
            self.headers.append(headers)
            fault = self.script.faults.get(number, "")
            if self.script.always and self.script.victim in prompt:
                fault = self.script.always
            self.struck[fault] += 1
        if number == self.script.dies_at:
            os._exit(7)
        return number, fault

    def hit(self, prompt: str) -> int:
        """Characters of the longest cached prefix; what is behind it is cached from now on."""
        found, chain, known = 0, 0, self.script.cache
        with self.lock:
            for end in range(BLOCK, len(prompt) + 1, BLOCK):
                chain = hash((chain, prompt[end - BLOCK : end]))
                known = known and chain in self.blocks
                found = end if known else found
                self.blocks.add(chain)
        return found

    def answer(self, prompt: str, hit: int) -> str:
        if second := SECOND.search(prompt):
            return f"The correct answer is ({second[1]})."
        asked = parse(prompt)
        document = asked.document
        if self.script.stale and hit > len(prompt) // 2:
            document = parse(next(p for p in self.prompts if p[:hit] != prompt[:hit])).document
        letter = read(document, asked.question, asked.choices) or "A"
        with self.lock:
            self.struck["answer"] += 1
            noisy = self.script.noise and self.struck["answer"] % self.script.noise == 0
        return f"{'Well. ' if noisy else ''}The correct answer is ({letter})."


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        script = self.server.script
        if time.monotonic() - self.server.begun < script.late:
            self.plain(503, b"loading")
        elif self.path == "/v1/models":
            listed = [{"id": name, "object": "model"} for name in script.models]
            self.plain(200, json.dumps({"object": "list", "data": listed}).encode())
        elif self.path == "/long":
            self.plain(200, b"x" * 1000)
        elif self.path == "/health":
            self.plain(200, script.health.encode())
        else:
            self.plain(404, b"{}")

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.path == "/reset":
            self.server.blocks.clear()
            self.plain(200, b"")
            return
        body = json.loads(data)
        number, fault = self.server.take(body, {k.lower(): v for k, v in self.headers.items()})
        with suppress(BrokenPipeError, ConnectionResetError):
            self.strike(fault, body) if fault else self.good(body, number)

    @contextmanager
    def counted(self) -> Iterator[None]:
        with self.server.lock:
            self.server.active += 1
            self.server.most_active = max(self.server.most_active, self.server.active)
        try:
            yield
        finally:
            with self.server.lock:
                self.server.active -= 1

    def good(self, body: dict[str, Any], number: int) -> None:
        prompt = body["messages"][0]["content"]
        with self.counted():  # until the client may go on
            while self.server.most_active < self.server.script.together:
                time.sleep(0.01)
            hit = self.server.hit(prompt)
            text = self.server.answer(prompt, hit)
        self.complete(body, text, "stop", self.usage(prompt, hit))

    def usage(self, prompt: str, hit: int) -> dict[str, Any] | None:
        told = self.server.script.usage
        counts: dict[str, Any] = {"prompt_tokens": len(prompt) // 4, "completion_tokens": 6}
        if told == "none":
            return counts
        cached = hit // 4 if told == "true" else told
        return counts | {"prompt_tokens_details": {"cached_tokens": cached}}

    def complete(
        self, body: dict[str, Any], text: str, reason: str, usage: dict[str, Any] | None
    ) -> None:
        if not (body.get("stream") and self.server.script.stream):
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": reason}
            choice |= self.logprobs(body, text)
            self.plain(200, json.dumps({"choices": [choice], "usage": usage}).encode())
            return
        half = len(text) // 2
        self.events()
        for piece, finish in ((text[:half], None), (text[half:], None), ("", reason)):
            choice = {"index": 0, "delta": {"content": piece}, "finish_reason": finish}
            self.event({"choices": [choice | self.logprobs(body, piece)]})
        if body["stream_options"]["include_usage"]:
            self.event({"choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def logprobs(self, body: dict[str, Any], text: str) -> dict[str, Any]:
        """One token per word."""
        if not body.get("logprobs"):
            return {}
        entries = [{"token": word, "logprob": -len(word) / 8} for word in text.split()]
        return {"logprobs": {"content": entries}}

    def strike(self, fault: str, body: dict[str, Any]) -> None:
        if fault.isdigit():
            self.plain(int(fault), b'{"error": {"message": "injected"}}')
        elif fault == "empty":
            self.complete(body, "", "length", {"prompt_tokens": 9})
        elif fault == "silent":
            self.complete(body, "", "stop", {"prompt_tokens": 9})
        elif fault == "chatty":
            self.complete(body, "I think it is B, or A.", "stop", {"prompt_tokens": 9})
        elif fault == "slow":
            time.sleep(10)
        elif fault == "drip":
            self.drip()
        elif fault == "drop":
            self.close_connection = True
        elif fault == "cut":
            self.events()
            self.event({"choices": [{"delta": {"content": "The correct answer is (A)"}}]})
            self.close_connection = True
        elif fault == "unusual events":
            self.unusual()
        elif fault == "error event":
            self.events()
            self.event({"error": {"message": "out of memory", "code": 500}})
            self.chunk(b"")
        elif fault == "short":
            self.plain(200, b'{"choices": [', more=50)
            self.close_connection = True
        elif fault == "garbage":
            self.plain(200, b"<html>it works</html>")
        elif fault == "deep":
            self.plain(200, b"[" * 20_000)
        elif fault == "shape":
            self.plain(200, b'{"choices": [{"message": {"content": 5}}]}')
        else:
            raise AssertionError(fault)

    def unusual(self) -> None:
        """All that the standard of server-sent events allows, and few servers do."""
        self.events()
        self.chunk(b'\xef\xbb\xbf: hello\r\rfoo: bar\r\nwithout-colon\ndata: {"choices":\r\n')
        self.chunk(b'data: [{"delta": {"content": "The answer"},\ndata:"finish_reason":')
        self.chunk(b'"stop"}]}\r\r\ndata: [DONE]\r\n\r\n')
        self.chunk(b"")

    def drip(self) -> None:
        """Something arrives again and again, but never an answer."""
        self.events()
        for _ in range(200):
            self.chunk(b": still here\n")
            time.sleep(0.05)

    def events(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def event(self, value: dict[str, Any]) -> None:
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def plain(self, status: int, data: bytes, more: int = 0) -> None:
        """`more` bytes are promised and never come."""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data) + more))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def scripted(script: Script | None = None, **settings: Any) -> Iterator[Server]:
    """A server in a thread of this process."""
    server = Server(script or Script(**settings))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main(port: str, settings: str = "{}") -> None:
    script = Script(**json.loads(settings))
    if script.child:
        os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600")
    Server(script, int(port)).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
