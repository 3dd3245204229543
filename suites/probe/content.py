"""Prompts as words that any server can be sent: token ids, a text, or a chat."""

from __future__ import annotations

import base64
import secrets
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from kvproof.suites.probe.answers import Answer

Words: TypeAlias = tuple[int, ...]
"""Each from 0 to ALPHABET - 1. As token ids, a word is one token; in a text, at least one."""
Form: TypeAlias = Literal["ids", "text", "chat"]

ALPHABET = 32
FIRST_ID = 40
"""Ids from here on are ordinary tokens of every vocabulary that begins with bytes or signs."""
LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
HEAD = 12
"""Random words that make a prompt one that nobody has asked before."""
_SIDE = 224
"""Pixels of an image."""


def fresh(count: int) -> Words:
    """Draw words; HEAD of them never come twice."""
    return tuple(secrets.randbelow(ALPHABET) for _ in range(count))


def other(word: int) -> Words:
    """Return words that part from `word` at once, followed by three fresh ones."""
    return ((word + 1 + secrets.randbelow(ALPHABET - 1)) % ALPHABET, *fresh(3))


class Turn(NamedTuple):
    """Words of a user, and what they were answered."""

    words: Words
    answer: Answer | None = None
    image: bytes = b""
    """A PNG file in front of the words; in chats only."""


def prompt_of(form: Form, turns: Sequence[Turn]) -> dict[str, Any]:
    """Return the field of the body that holds the prompt."""
    if form == "ids":
        return {"prompt": [token for turn in turns for token in _ids(turn)]}
    if form == "text":
        return {"prompt": " ".join(_text(turn) for turn in turns)}
    return {"messages": [message for turn in turns for message in _messages(turn)]}


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
        parts = [{"type": "image_url", "image_url": {"url": _url(turn.image)}}]
        parts.append({"type": "text", "text": text})
    said = [{"role": "assistant", "content": turn.answer.text}] if turn.answer else []
    return [{"role": "user", "content": parts}, *said]


def _url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def image() -> bytes:
    """Return a PNG file of random colours in tiles; all are of one size."""
    tiles = [secrets.token_bytes(3 * 8) for _ in range(8)]
    wide = _SIDE // 8
    rows = [
        b"\0" + b"".join(tiles[y // wide][3 * x : 3 * x + 3] * wide for x in range(8))
        for y in range(_SIDE)
    ]
    head = struct.pack(">IIBBBBB", _SIDE, _SIDE, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
