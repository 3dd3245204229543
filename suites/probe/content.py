"""Prompts as words for any server: token ids, a text, or a chat."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from kvproof.harness.served.images import data_url
from kvproof.suites.probe.answers import Answer

Words: TypeAlias = tuple[int, ...]
"""Each from 0 to ALPHABET - 1. A word is one token as an id, and at least one in a text."""
Form: TypeAlias = Literal["ids", "text", "chat"]

ALPHABET = 32
FIRST_ID = 40
"""Ids from here on are ordinary tokens of every vocabulary that begins with bytes or signs."""
LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
HEAD = 12
"""Random words that make a prompt unique."""


def fresh(count: int) -> Words:
    """Draw words; HEAD of them never repeat."""
    return tuple(secrets.randbelow(ALPHABET) for _ in range(count))


def other(word: int) -> Words:
    """Return words that differ from `word` at once, followed by three new ones."""
    return ((word + 1 + secrets.randbelow(ALPHABET - 1)) % ALPHABET, *fresh(3))


class Turn(NamedTuple):
    """Words of a user, and their answer."""

    words: Words
    answer: Answer | None = None
    image: bytes = b""
    """A PNG file before the words; in chats only."""


def prompt_of(form: Form, turns: Sequence[Turn]) -> dict[str, Any]:
    """Return the field of the body that holds the prompt."""
    if form == "ids":
        return {"prompt": [token for turn in turns for token in _ids(turn)]}
    if form == "text":
        return {"prompt": " ".join(_text(turn) for turn in turns)}
    return {"messages": [message for turn in turns for message in _messages(turn)]}


def content_of(body: dict[str, Any]) -> str | tuple[int | str, ...]:
    """Return what a cache may reuse of a body's prompt: ids, a text, or a chat in its pieces."""
    if "messages" not in body:
        prompt = body["prompt"]
        return prompt if isinstance(prompt, str) else tuple(prompt)
    return tuple(piece for message in body["messages"] for piece in _pieces(message))


def _pieces(message: dict[str, Any]) -> Iterator[str]:
    content = message["content"]
    parts: list[dict[str, Any]] = [{"text": content}] if isinstance(content, str) else content
    yield message["role"][:1]
    for part in parts:
        if "text" in part:
            yield from part["text"]
        else:
            yield hashlib.sha256(part["image_url"]["url"].encode()).hexdigest()


def _ids(turn: Turn) -> list[int]:
    said = turn.answer.ids if turn.answer else ()
    return [*(FIRST_ID + word for word in turn.words), *said]


def _written(words: Words) -> str:
    return " ".join(LETTERS[word] for word in words)


def _text(turn: Turn) -> str:
    return _written(turn.words) + (turn.answer.text if turn.answer else "")


def _messages(turn: Turn) -> list[dict[str, Any]]:
    text = _written(turn.words)
    parts: Any = text
    if turn.image:
        parts = [{"type": "image_url", "image_url": {"url": data_url(turn.image)}}]
        parts.append({"type": "text", "text": text})
    said = [{"role": "assistant", "content": _of_chat(turn.answer)}] if turn.answer else []
    return [{"role": "user", "content": parts}, *said]


def _of_chat(answer: Answer) -> str:
    """Return the text that a client sends back: no reasoning, unless there is nothing else."""
    return answer.content or answer.text
