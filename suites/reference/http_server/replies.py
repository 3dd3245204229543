"""Parses the bytes of an answer, complete or streamed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from kvproof.harness.http.sse import events


@dataclass
class Choice:
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    finish: str = ""
    scores: list[Any] = field(default_factory=list)
    """(log-probability, number of alternatives) of each token; None for one without."""
    begun: int = 0
    """Number of first chunks: a role, the prompt's tokens."""


@dataclass
class Reply:
    """Everything received so far."""

    choices: dict[int, Choice] = field(default_factory=dict)
    usages: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    done: bool = False
    """Whether the end of the stream has come."""


def read(data: bytes, *, stream: bool) -> Reply:
    reply = Reply()
    if not stream or not data.startswith(b"data: "):
        if data:
            _add(reply, json.loads(data))
        return reply
    for event in events([data]):
        if event.data == b"[DONE]":
            reply.done = True
        else:
            _add(reply, json.loads(event.data))
    return reply


def _add(reply: Reply, body: dict[str, Any]) -> None:
    if "error" in body:
        reply.error = body["error"]
        return
    reply.ids.add(body["id"])
    if body.get("usage"):
        reply.usages.append(body["usage"])
    for piece in body["choices"]:
        _add_piece(reply.choices.setdefault(piece["index"], Choice()), piece)


def _add_piece(choice: Choice, piece: dict[str, Any]) -> None:
    said = piece.get("message") or piece.get("delta") or {}
    choice.begun += ("role" in said) + ("prompt_token_ids" in piece)
    choice.text += piece.get("text", "") + said.get("content", "")
    choice.tokens += piece.get("token_ids", ())
    choice.prompt += piece.get("prompt_token_ids", ())
    choice.finish += piece["finish_reason"] or ""
    scores = piece["logprobs"] or {}
    if "content" in scores:
        choice.scores += [
            (each["logprob"], len(each["top_logprobs"])) for each in scores["content"]
        ]
    elif scores:
        rows = zip(scores["token_logprobs"], scores["top_logprobs"], strict=True)
        choice.scores += [None if logprob is None else (logprob, len(top)) for logprob, top in rows]
