"""A completion server with a small random language model, a prefix cache, and faults on command.

The model hashes the last tokens and an entry from far back, so that wrong content of the cache
changes what follows. Noise is drawn anew for every request. What a request gets depends on its
prompt and on how often that came, never on the order in which requests arrive.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kvproof.suites.reference.evaluation import server

BLOCK = 16
WORDS = 64
LONG = 100
"""Tokens of an answer that takes long."""


@dataclass
class Script:
    """How it behaves."""

    cache: bool = True
    noise: float = 0.0
    """Spread of what is added to every logit."""
    wrong_every: int = 0
    """One in so many hits reads another content, by its prompt."""
    salted: bool = False
    """Answers depend on the salt."""
    adapters: tuple[str, ...] = ()
    adapter_in_key: bool = True
    """Blocks of one adapter are not hit by another, or by none."""
    adapters_act: bool = True
    """An adapter changes answers."""
    images: bool = False
    """Chats are answered, and their images are read."""
    image_in_key: bool = True
    """Blocks of one image are not hit by another one in its place."""
    first_images: bool = False
    """Each image is taken for the first one at its place of a chat."""
    forgets: bool = True
    """Blocks of before it slept, restarted or had other weights are gone; their content is."""
    shift: float = 3.0
    """Spread of what wrong content adds to the logits."""
    tops: int = 5
    ids: bool = True
    salt: bool = True
    salt_in_key: bool = True
    """Blocks of one salt are not hit under another."""
    counts: bool = True
    logprobs: bool = True
    special_first: bool = False
    """The first token of each answer is a special one, which has no text."""
    refuses: tuple[str, ...] = ()
    most_prompt: int = 100_000
    fails_after: int = 1 << 30
    fails_at: int = 0
    """Number of a request that fails, from 1."""
    seen: list[dict[str, Any]] = field(default_factory=list)
    times: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """Prompt -> how often it came."""


class Server(server.Server):
    def __init__(self, script: Script) -> None:
        super().__init__(Handler)
        self.script = script
        self.came = threading.Condition(self.lock)
        """A request has come."""
        self.owners: dict[tuple[int, ...], str] = {}
        """First block -> the adapter, or the images, that computed it."""
        self.slept = False
        self.weights = 0
        self.stale: set[tuple[int, ...]] = set()
        """First blocks that other weights computed."""
        self.images: list[str] = []
        """The first ones at their places."""


class Handler(server.Handler):
    server: Server

    def get(self) -> None:
        lora = [{"id": name, "parent": "random"} for name in self.server.script.adapters]
        self.send_json(200, {"data": [{"id": "random"}, *lora]})

    def post(self, data: bytes) -> None:
        if self.path.endswith("/reset"):
            self.server.blocks.clear()
            self.send_json(200, {})
            return
        if self.path.endswith(("/sleep?level=1", "/wake", "/restart", "/weights")):
            self._live(json.loads(data or b"null"))
            self.send_json(200, {})
            return
        if not self.path.endswith("/completions"):
            self.send_json(404, {})
            return
        body, script = json.loads(data), self.server.script
        with self.server.came:
            script.seen.append(body)
            self.server.came.notify_all()
            if body.get("max_tokens", 0) >= LONG:  # until another one runs beside it
                number = len(script.seen)
                self.server.came.wait_for(lambda: len(script.seen) > number, timeout=1.0)
        if fault := self._fault(body, script):
            self.send_json(400, {"error": {"message": fault}})
            return
        ids = ids_of(body)
        space = body.get("cache_salt", "") * script.salt_in_key
        space += self._adapter(body) * script.adapter_in_key
        space += "".join(self._images(body)) * script.image_in_key
        cached = self.server.hit(ids[:-1], BLOCK, space, on=script.cache)
        if self.server.weights and not cached:
            self.server.stale.add(ids[:BLOCK])
        self.send_json(200, self._answer(body, ids, cached))

    def _live(self, weights: int | None) -> None:
        if weights is None:
            self.server.slept = True
        else:
            self.server.weights = weights
        if self.server.script.forgets:
            self.server.blocks.clear()
            self.server.stale.clear()

    def _images(self, body: dict[str, Any]) -> list[str]:
        found, first = images_of(body), self.server.images
        first += found[len(first) :]
        return first[: len(found)] if self.server.script.first_images else found

    def _adapter(self, body: dict[str, Any]) -> str:
        return name if (name := body.get("model", "")) in self.server.script.adapters else ""

    def _read(self, body: dict[str, Any], ids: tuple[int, ...], cached: int) -> int:
        """Number of the content that a request reads; 0: its own without an adapter."""
        script, own = self.server.script, self._adapter(body) + "".join(self._images(body))
        owner = self.server.owners.setdefault(ids[:-1], own)
        owner = self.server.owners.setdefault(ids[: len(ids) // BLOCK * BLOCK // 2], owner)
        if self.server.weights:
            return 2
        if (
            cached
            and (self.server.slept or ids[:BLOCK] in self.server.stale)
            and not script.forgets
        ):
            return 1
        if cached and not (script.adapter_in_key and script.image_in_key):
            own = owner
        return zlib.crc32(own.encode()) if script.adapters_act else 0

    def _fault(self, body: dict[str, Any], script: Script) -> str:
        refused = {*script.refuses, *(() if script.salt else ("cache_salt",))}
        refused |= set() if script.ids else {"return_token_ids", "ignore_eos"}
        if found := refused & body.keys():
            return f"unknown field {found}"
        if len(script.seen) > script.fails_after or len(script.seen) == script.fails_at:
            return "no more"
        if (body.get("logprobs") or 0) > script.tops:
            return "logprobs is too large"
        if "messages" in body and not script.images:
            return "no chats"
        return "too long" if len(body.get("prompt", "")) > script.most_prompt else ""

    def _answer(self, body: dict[str, Any], ids: tuple[int, ...], cached: int) -> dict[str, Any]:
        script, content = self.server.script, 0
        if cached > len(ids) // 2:
            content = int(bool(script.wrong_every) and _drawn(ids) % script.wrong_every == 0)
        content += self._read(body, ids, cached)
        if script.salted:
            content += zlib.crc32(body.get("cache_salt", "").encode())
        with self.server.lock:
            script.times[ids] += 1
            noise = np.random.default_rng([_drawn(ids), script.times[ids]])
        rows, answer = [], list(ids)
        for _ in range(body["max_tokens"]):
            rows.append(logprobs(answer, content, script, noise))
            answer.append(int(rows[-1].argmax()))
        new = answer[len(ids) :]
        text = "".join(map(word, new[script.special_first :]))
        choice: dict[str, Any] = {"text": text, "finish_reason": "length"}
        if "messages" in body:
            choice |= {"message": {"content": text}, "logprobs": _of_chat(new, rows)}
        elif script.logprobs and body.get("logprobs") is not None:
            choice["logprobs"] = _written(new, rows, body["logprobs"])
        if body.get("return_token_ids"):
            choice |= {"token_ids": new, "prompt_token_ids": list(ids)}
        usage: dict[str, Any] = {"prompt_tokens": len(ids), "completion_tokens": len(new)}
        if script.counts:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return {"choices": [choice], "usage": usage}


def ids_of(body: dict[str, Any]) -> tuple[int, ...]:
    """Tokens of a prompt; an image is a block of placeholders."""
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return tuple(prompt)
    if prompt is None:
        text = body["messages"][0]["content"][-1]["text"]
        prompt = f"{' w7' * BLOCK * len(images_of(body))} {text}"
    return tokens_of(prompt)


def images_of(body: dict[str, Any]) -> list[str]:
    """URLs of the images of a chat."""
    parts = body["messages"][0]["content"] if "messages" in body else ()
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def word(token: int) -> str:
    return f" w{token}"


def tokens_of(text: str) -> tuple[int, ...]:
    """Words in order; those of answers are their own tokens."""
    return tuple(
        int(each[1:]) if each[1:].isdigit() and each[0] == "w" else zlib.crc32(each.encode()) % 50
        for each in text.split()
    )


def _drawn(ids: tuple[int, ...]) -> int:
    return zlib.crc32(repr(ids).encode())


def logprobs(
    tokens: Sequence[int], content: int, script: Script, noise: np.random.Generator
) -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(zlib.crc32(bytes([each % 256 for each in tokens[-4:]])))
    logits = rng.normal(0, 2, WORDS)
    if content:
        logits += np.random.default_rng(6 + content).normal(0, script.shift, WORDS)
    if script.noise:
        logits += noise.normal(0, script.noise, WORDS)
    found: npt.NDArray[np.float64] = logits - np.log(np.exp(logits).sum())
    return found


def _of_chat(new: Sequence[int], rows: Sequence[npt.NDArray[np.float64]]) -> object:
    def said(token: int, row: npt.NDArray[np.float64]) -> dict[str, Any]:
        return {"token": word(token), "logprob": float(row[token])}

    tops = [[said(int(each), row) for each in np.argsort(row)[::-1][:5]] for row in rows]
    found = zip(new, rows, tops, strict=True)
    return {"content": [said(token, row) | {"top_logprobs": top} for token, row, top in found]}


def _written(new: Sequence[int], rows: Sequence[npt.NDArray[np.float64]], top: int) -> object:
    return {
        "tokens": [word(token) for token in new],
        "token_logprobs": [float(row[token]) for token, row in zip(new, rows, strict=True)],
        "top_logprobs": [
            {word(int(token)): float(row[token]) for token in np.argsort(row)[::-1][:top]}
            for row in rows
        ],
        "text_offset": [0] * len(new),
    }
