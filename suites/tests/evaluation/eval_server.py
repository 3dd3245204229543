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
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from kvproof.suites.reference.evaluation import server
from kvproof.suites.reference.evaluation.server import serving
from kvproof.suites.tests.evaluation.eval_reader import parse, read
from kvproof.suites.tests.patience import LONG

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
    engine: dict[str, str] = field(default_factory=dict)
    """Owner and version that the server reports."""
    health: str = "OK"
    """What /health says, with 200."""
    dies_at: int = -1
    together: int = 0
    """The first request is not answered before there are so many at once."""
    late: float = 0.0
    """Seconds until it is ready."""
    child: bool = False
    """It starts a process of its own that would outlive it."""


class Server(server.Server):
    def __init__(self, script: Script, port: int = 0) -> None:
        super().__init__(Handler, port)
        self.script = script
        self.prompts: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.active = self.most_active = 0
        self.struck: Counter[str] = Counter()
        self.begun = time.monotonic()
        self.over = threading.Event()
        """Nobody waits for slow answers any more."""

    def server_close(self) -> None:
        self.over.set()
        super().server_close()

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


class Handler(server.Handler):
    server: Server

    def get(self) -> None:
        script = self.server.script
        if time.monotonic() - self.server.begun < script.late:
            self.send(503, b"loading")
        elif self.path == "/v1/models":
            owner = {"owned_by": each} if (each := script.engine.get("owner")) else {}
            listed = [{"id": name, "object": "model", **owner} for name in script.models]
            self.send_json(200, {"object": "list", "data": listed})
        elif self.path == "/version" and script.engine:
            self.send_json(200, {"version": script.engine["version"]})
        elif self.path == "/long":
            self.send(200, b"x" * 1000)
        elif self.path == "/health":
            self.send(200, script.health.encode())
        else:
            self.send(404, b"{}")

    def post(self, data: bytes) -> None:
        if self.path == "/reset":
            self.server.blocks.clear()
            self.send(200, b"")
            return
        body = json.loads(data)
        number, fault = self.server.take(body, {k.lower(): v for k, v in self.headers.items()})
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
            hit = self.server.hit(prompt, BLOCK, on=self.server.script.cache)
            text = self.server.answer(prompt, hit)
        self.complete(body, text, "stop", self.usage(prompt, hit))

    def usage(self, prompt: str, hit: int) -> dict[str, Any] | None:
        reported = self.server.script.usage
        counts: dict[str, Any] = {"prompt_tokens": len(prompt) // 4, "completion_tokens": 6}
        if reported == "none":
            return counts
        cached = hit // 4 if reported == "true" else reported
        return counts | {"prompt_tokens_details": {"cached_tokens": cached}}

    def complete(
        self, body: dict[str, Any], text: str, reason: str, usage: dict[str, Any] | None
    ) -> None:
        if not (body.get("stream") and self.server.script.stream):
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": reason}
            choice |= self.logprobs(body, text)
            self.send_json(200, {"choices": [choice], "usage": usage})
            return
        half = len(text) // 2
        self.send_events()
        for piece, finish in ((text[:half], None), (text[half:], None), ("", reason)):
            choice = {"index": 0, "delta": {"content": piece}, "finish_reason": finish}
            self.send_event({"choices": [choice | self.logprobs(body, piece)]})
        if body["stream_options"]["include_usage"]:
            self.send_event({"choices": [], "usage": usage})
        self.send_chunk(b"data: [DONE]\n\n")
        self.send_chunk(b"")

    def logprobs(self, body: dict[str, Any], text: str) -> dict[str, Any]:
        """One token per word."""
        if not body.get("logprobs"):
            return {}
        entries = [{"token": word, "logprob": -len(word) / 8} for word in text.split()]
        return {"logprobs": {"content": entries}}

    def strike(self, fault: str, body: dict[str, Any]) -> None:
        if fault.isdigit():
            self.send(int(fault), b'{"error": {"message": "injected"}}')
        elif fault == "empty":
            self.complete(body, "", "length", {"prompt_tokens": 9})
        elif fault == "silent":
            self.complete(body, "", "stop", {"prompt_tokens": 9})
        elif fault == "chatty":
            self.complete(body, "I think it is B, or A.", "stop", {"prompt_tokens": 9})
        elif fault == "slow":
            self.server.over.wait(LONG)
        elif fault == "drip":
            self.drip()
        elif fault == "drop":
            self.close_connection = True
        elif fault == "cut":
            self.send_events()
            self.send_event({"choices": [{"delta": {"content": "The correct answer is (A)"}}]})
            self.close_connection = True
        elif fault == "unusual events":
            self.unusual()
        elif fault == "error event":
            self.send_events()
            self.send_event({"error": {"message": "out of memory", "code": 500}})
            self.send_chunk(b"")
        elif fault == "short":
            self.send(200, b'{"choices": [', missing=50)
            self.close_connection = True
        elif fault == "garbage":
            self.send(200, b"<html>it works</html>")
        elif fault == "deep":
            self.send(200, b"[" * 20_000)
        elif fault == "shape":
            self.send(200, b'{"choices": [{"message": {"content": 5}}]}')
        else:
            raise AssertionError(fault)

    def unusual(self) -> None:
        """All that the standard of server-sent events allows, and few servers do."""
        self.send_events()
        self.send_chunk(b'\xef\xbb\xbf: hello\r\rfoo: bar\r\nwithout-colon\ndata: {"choices":\r\n')
        self.send_chunk(b'data: [{"delta": {"content": "The answer"},\ndata:"finish_reason":')
        self.send_chunk(b'"stop"}]}\r\r\ndata: [DONE]\r\n\r\n')
        self.send_chunk(b"")

    def drip(self) -> None:
        """Something arrives again and again, but never an answer."""
        self.send_events()
        while not self.server.over.wait(0.05):
            self.send_chunk(b": still here\n")


def scripted(script: Script | None = None, **settings: Any) -> AbstractContextManager[Server]:
    """A server in a thread of this process."""
    return serving(Server(script or Script(**settings)))


def main(port: str, settings: str = "{}") -> None:
    script = Script(**json.loads(settings))
    if script.child:
        os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600")
    Server(script, int(port)).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
