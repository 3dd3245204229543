"""A scripted OpenAI server: a deterministic model behind a prefix cache, wrong on command."""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SIGNS = "abcdefghijklmnop"


@dataclass
class Script:
    """How a server behaves."""

    block: int = 16
    forms: tuple[str, ...] = ("ids", "text", "chat")
    template: int = 0
    """Tokens in front of every chat."""
    hits: bool = True
    told: Callable[[int, int], Any] | None = lambda cached, prompt: cached
    """(cached, prompt tokens) -> what is told; None: nothing is."""
    usage: bool = True
    salts: str = "documented"
    """`documented`, `undocumented`, or `ignored` although documented."""
    logprobs: bool = True
    mute: bool = False
    """Answers are empty."""
    stale: bool = False
    """After a hit, another answer."""
    jitter: float = 0.0
    """Log-probabilities after a hit differ by that much."""
    tie: float = 1.0
    """Gap between the two likeliest tokens; below the jitter, a hit may turn them around."""
    noisy: int = 0
    """Every so many answers are others."""
    broken: int = 0
    """Every so many requests fail with 500."""
    status: int = 0
    """Of every request to complete."""
    models_status: int = 200
    seconds: float = 0.0
    """Of every answer."""
    cut_streams: bool = False
    garbage: bool = False
    dies_at: int = -1
    """Every connection from this request on is closed at once."""
    hangs_up: bool = False
    """Connections of requests to complete are closed at once, after the first 60."""
    key: str = ""
    owner: str = "scripted"
    metrics: Callable[[Server], str] | None = None


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script = script
        self.lock = threading.Lock()
        self.blocks: set[str] = set()
        self.count = self.hit_tokens = self.query_tokens = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients leave as they like."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def find(self, tokens: list[Any], salt: str) -> int:
        """Tokens of the longest cached prefix; the whole prompt is cached from now on."""
        script, chain, found = self.script, salt, 0
        known = script.hits
        with self.lock:
            for end in range(script.block, len(tokens) + 1, script.block):
                chain = digest((chain, tokens[end - script.block : end]))
                known = known and chain in self.blocks and end < len(tokens)
                found = end if known else found
                self.blocks.add(chain)
            self.query_tokens += len(tokens)
            self.hit_tokens += found
        return found


def digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        script = self.server.script
        if 0 <= script.dies_at < self.server.count:
            self.close_connection = True
        elif self.path == "/v1/models" and self.allowed():
            listed = [{"id": "scripted", "owned_by": script.owner, "max_model_len": 4096}]
            self.say(script.models_status, {"data": listed})
        elif self.path == "/openapi.json":
            fields = {} if script.salts == "undocumented" else {"cache_salt": {}}
            self.say(200, documented({"model": {}, **fields}))
        elif self.path == "/metrics" and script.metrics:
            self.send(200, script.metrics(self.server).encode(), "text/plain")
        else:
            self.say(404, {"error": {"message": "there is nothing"}})

    def allowed(self) -> bool:
        key = self.server.script.key
        if not key or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self.say(401, {"error": {"message": "wrong key"}})
        return False

    def do_POST(self) -> None:
        server, script = self.server, self.server.script
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            number = server.count
            server.count += 1
        if 0 <= script.dies_at <= number or (script.hangs_up and number >= 60):
            self.close_connection = True
            return
        time.sleep(script.seconds)
        with suppress(BrokenPipeError, ConnectionResetError):
            if script.status:
                self.say(script.status, {"error": {"message": "by script"}})
            elif script.broken and number % script.broken == 0:
                self.say(500, {"error": {"message": "out of memory"}})
            elif script.garbage:
                self.send(200, b"<html>it works</html>", "text/html")
            else:
                self.complete(body, number)

    def tokens(self, body: dict[str, Any]) -> list[Any] | None:
        """Tokens of the prompt, one per character of a text; None: not taken in that form."""
        forms = self.server.script.forms
        if "messages" in body:
            written = "".join(f"<{m['role']}>{m['content']}" for m in body["messages"])
            taken = self.path.endswith("/chat/completions") and "image_url" not in written
            template = ["<system>"] * self.server.script.template
            return [*template, *written, "<assistant>"] if taken and "chat" in forms else None
        if isinstance(body["prompt"], str):
            return [*body["prompt"]] if "text" in forms else None
        return list(body["prompt"]) if "ids" in forms else None

    def complete(self, body: dict[str, Any], number: int) -> None:
        script, tokens = self.server.script, self.tokens(body)
        if tokens is None:
            self.say(400, {"error": {"message": "not in this form"}})
            return
        salt = "" if script.salts == "ignored" else body.get("cache_salt", "")
        cached = self.server.find(tokens, salt)
        wrong = (cached and script.stale) or (script.noisy and number % script.noisy == 0)
        seed = digest((tokens, number if wrong else 0))
        said = [self.token(seed, place, cached) for place in range(body["max_tokens"])]
        said = [] if script.mute else said
        if body.get("stream"):
            self.stream(said)
            return
        counts: dict[str, Any] = {"prompt_tokens": len(tokens), "completion_tokens": len(said)}
        if script.told:
            told = script.told(cached, len(tokens))
            counts["prompt_tokens_details"] = {"cached_tokens": told}
        choice = self.choice(body, said)
        self.say(200, {"choices": [choice], **({"usage": counts} if script.usage else {})})

    def token(self, seed: str, place: int, cached: int) -> list[tuple[str, float]]:
        """The two likeliest tokens in a place."""
        script = self.server.script
        first = int(digest((seed, place))[:8], 16)
        pair = [SIGNS[first % 16], SIGNS[(first // 16 % 15 + 1 + first % 16) % 16]]
        nudge = script.jitter if cached else 0.0
        values = [-0.5 - nudge, -0.5 - script.tie]
        if values[0] < values[1]:
            pair.reverse()
            values.reverse()
        return list(zip(pair, values, strict=True))

    def choice(self, body: dict[str, Any], said: list[list[tuple[str, float]]]) -> dict[str, Any]:
        text = "".join(top[0][0] for top in said)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        chat = "messages" in body
        choice |= {"message": {"content": text}} if chat else {"text": text}
        if body.get("logprobs") is None or not self.server.script.logprobs:
            return choice
        if chat:
            content = [
                {"token": top[0][0], "logprob": top[0][1],
                 "top_logprobs": [{"token": t, "logprob": v} for t, v in top]}
                for top in said
            ]  # fmt: skip
            return choice | {"logprobs": {"content": content}}
        return choice | {
            "logprobs": {
                "tokens": [top[0][0] for top in said],
                "token_logprobs": [top[0][1] for top in said],
                "top_logprobs": [dict(top) for top in said],
            }
        }

    def stream(self, said: list[list[tuple[str, float]]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for top in said[: 2 if self.server.script.cut_streams else None]:
            event = {"choices": [{"index": 0, "text": top[0][0]}]}
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if not self.server.script.cut_streams:
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def say(self, status: int, value: object) -> None:
        self.send(status, json.dumps(value).encode(), "application/json")

    def send(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def documented(fields: dict[str, Any]) -> dict[str, Any]:
    """An `openapi.json` of completions and chats that take the same fields."""
    schema = {"$ref": "#/components/schemas/CompletionRequest"}
    post = {"post": {"requestBody": {"content": {"application/json": {"schema": schema}}}}}
    return {
        "paths": dict.fromkeys(("/v1/completions", "/v1/chat/completions"), post),
        "components": {"schemas": {"CompletionRequest": {"properties": fields}}},
    }


def vllm_metrics(server: Server) -> str:
    return (
        f'vllm:prefix_cache_hits_total{{engine="0"}} {server.hit_tokens}\n'
        f'vllm:prefix_cache_queries_total{{engine="0"}} {server.query_tokens}\n'
        f'vllm:request_success_total{{finished_reason="length"}} {server.count}\n'
        "vllm:num_requests_running 0.0\nvllm:num_requests_waiting 0.0\n"
        f"vllm:kv_cache_usage_perc {math.ulp(0.0) * 0}\n"
    )


@contextmanager
def scripted(**settings: Any) -> Iterator[Server]:
    """A server in a thread of this process."""
    server = Server(Script(**settings))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
