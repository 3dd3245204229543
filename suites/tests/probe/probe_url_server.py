"""A scripted OpenAI server: a deterministic model behind a prefix cache, wrong on command."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random
from typing import Any

from kvproof.suites.reference.evaluation import server
from kvproof.suites.reference.evaluation.server import serving

SIGNS = "abcdefghijklmnop"


@dataclass
class Script:
    """How a server behaves."""

    block: int = 16
    forms: tuple[str, ...] = ("ids", "text", "chat")
    template: int = 0
    """Tokens in front of every chat."""
    hits: bool = True
    reported: Callable[[int, int], Any] | None = lambda cached, prompt: cached
    """(cached, prompt tokens) -> what is reported; None: nothing is."""
    usage: bool = True
    salts: str = "documented"
    """`documented`, `undocumented`, or `ignored` although documented."""
    logprobs: bool = True
    mute: bool = False
    """Answers are empty."""
    stale: bool = False
    """After a hit, another answer."""
    stale_every: int = 1
    """Which hits of a stale server are wrong: one in so many."""
    crossed: bool = False
    """A wrong hit is answered as the prompt of the hit before it, which may be the same one."""
    kept: bool = False
    """A prompt that was once hit wrong is answered wrong by every later hit."""
    stale_from: int = 0
    """Only hits of at least so many tokens are wrong."""
    longest: int = 4096
    """Tokens of a prompt, as the list of models has it; longer ones are refused."""
    recomputes: bool = False
    """Hits are told, and computed all the same."""
    reasons: bool = False
    """Chats are answered with a reasoning, and after that always with the same word."""
    jitter: float = 0.0
    """Log-probabilities after a hit differ by that much."""
    tie: float = 1.0
    """Gap between the two likeliest tokens; below the jitter, a hit may turn them around."""
    noisy: int = 0
    """One in so many answers is another one, by chance: a beat would fall on the same places."""
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


class Server(server.Server):
    def __init__(self, script: Script) -> None:
        super().__init__(Handler)
        self.script = script
        self.computed = 0
        """Tokens that were not taken from the cache."""
        self.count = self.hit_tokens = self.query_tokens = self.hits = 0
        self.last: list[Any] = []
        """The prompt of the hit before."""
        self.spoilt: set[object] = set()

    def find(self, tokens: list[Any], salt: str) -> int:
        """Tokens of the longest cached prefix; the whole prompt is cached from now on."""
        script = self.script
        found = self.hit(tuple(tokens), script.block, salt, on=script.hits)
        found -= script.block if found and found == len(tokens) else 0
        with self.lock:
            self.query_tokens += len(tokens)
            self.hit_tokens += found
            self.hits += bool(found)
        return found


def digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


class Handler(server.Handler):
    server: Server

    def get(self) -> None:
        script = self.server.script
        if 0 <= script.dies_at < self.server.count:
            self.close_connection = True
        elif self.path == "/v1/models" and self.allowed():
            listed = [{"id": "scripted", "owned_by": script.owner, "max_model_len": script.longest}]
            self.send_json(script.models_status, {"data": listed})
        elif self.path == "/openapi.json":
            fields = {} if script.salts == "undocumented" else {"cache_salt": {}}
            self.send_json(200, documented({"model": {}, **fields}))
        elif self.path == "/metrics" and script.metrics:
            self.send(200, script.metrics(self.server).encode(), "text/plain")
        else:
            self.send_json(404, {"error": {"message": "there is nothing"}})

    def allowed(self) -> bool:
        key = self.server.script.key
        if not key or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self.send_json(401, {"error": {"message": "wrong key"}})
        return False

    def post(self, data: bytes) -> None:
        server, script = self.server, self.server.script
        body = json.loads(data)
        with server.lock:
            number = server.count
            server.count += 1
        if 0 <= script.dies_at <= number or (script.hangs_up and number >= 60):
            self.close_connection = True
            return
        time.sleep(script.seconds)
        if script.status:
            self.send_json(script.status, {"error": {"message": "by script"}})
        elif script.broken and number % script.broken == 0:
            self.send_json(500, {"error": {"message": "out of memory"}})
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
        server, script, tokens = self.server, self.server.script, self.tokens(body)
        if tokens is None or len(tokens) + body["max_tokens"] > script.longest:
            why = "not in this form" if tokens is None else "longer than the model"
            self.send_json(400, {"error": {"message": why}})
            return
        salt = "" if script.salts == "ignored" else body.get("cache_salt", "")
        cached = server.find(tokens, salt)
        with server.lock:
            server.computed += len(tokens) - (0 if script.recomputes else cached)
        stale = self.stale(cached, tokens)
        noisy = script.noisy and Random(f"{number}").random() * script.noisy < 1
        answered = self.before(tokens) if cached else tokens
        seed = digest((answered if stale and script.crossed else tokens, 0))
        if noisy or (stale and not script.crossed):
            seed = digest((tokens, number))
        said = [self.token(seed, place, cached) for place in range(body["max_tokens"])]
        said = [] if script.mute else said
        if body.get("stream"):
            self.stream(said)
            return
        counts: dict[str, Any] = {"prompt_tokens": len(tokens), "completion_tokens": len(said)}
        if script.reported:
            reported = script.reported(cached, len(tokens))
            counts["prompt_tokens_details"] = {"cached_tokens": reported}
        choice = self.choice(body, said)
        self.send_json(200, {"choices": [choice], **({"usage": counts} if script.usage else {})})

    def stale(self, cached: int, tokens: list[Any]) -> bool:
        """Whether this hit is one of the wrong ones, which are as if drawn by lot."""
        script, number = self.server.script, self.server.hits
        if not script.stale or cached < max(1, script.stale_from):
            return False
        prompt = tuple(tokens)
        if int(digest(("lot", number))[:8], 16) % script.stale_every == 0:
            self.server.spoilt |= {prompt} if script.kept else set()
            return True
        return prompt in self.server.spoilt

    def before(self, tokens: list[Any]) -> list[Any]:
        """Return the prompt of the hit before this one."""
        with self.server.lock:
            last, self.server.last = self.server.last or tokens, tokens
        return last

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
        chat, script = "messages" in body, self.server.script
        said_in_chat = {"content": text}
        if script.reasons:
            said_in_chat = {"reasoning_content": text, "content": "Yes."}
        choice |= {"message": said_in_chat} if chat else {"text": text}
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
        cut = self.server.script.cut_streams
        self.send_events()
        for top in said[: 2 if cut else None]:
            self.send_event({"choices": [{"index": 0, "text": top[0][0]}]})
        if not cut:
            self.send_chunk(b"data: [DONE]\n\n")
            self.send_chunk(b"")
        self.close_connection = True


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


def scripted(**settings: Any) -> AbstractContextManager[Server]:
    """A server in a thread of this process."""
    return serving(Server(Script(**settings)))
