"""Tokens of a Hugging Face tokenizer as text that grows, and one by one as bytes."""

from __future__ import annotations

import re
from typing import Any

UNKNOWN = "\ufffd"


class GrowingText:
    """Decodes a token together with those before it, on which its text may depend."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        """Those that the next text may depend on."""
        self._decoded = 0
        """How many of them the text so far contains."""

    def add(self, token: int) -> str:
        """Return the text that is certain; half a character waits for its other half."""
        self._tokens.append(token)
        text = self._new()
        if text.endswith(UNKNOWN):
            return ""
        self._tokens = self._tokens[self._decoded :]
        self._decoded = len(self._tokens)
        return text

    def end(self) -> str:
        """Return the rest, half a character as U+FFFD."""
        return self._new()

    def _new(self) -> str:
        known = self._decode(self._tokens[: self._decoded])
        return self._decode(self._tokens)[len(known) :]

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


def _byte_letters() -> dict[str, int]:
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTE_LETTERS = _byte_letters()
_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes:
    """Bytes of each token, by the kind of the tokenizer's decoder."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        self._byte_level = "ByteLevel" in repr(decoder)
        self._special = frozenset(tokenizer.all_special_ids)

    def of(self, token: int) -> bytes:
        """Return the bytes of a token; of a special one, its name."""
        piece: str | None = self._tokenizer.convert_ids_to_tokens(token)
        if piece is None:
            return b""
        if token in self._special:
            return piece.encode()
        if self._byte_level and all(letter in BYTE_LETTERS for letter in piece):
            return bytes(BYTE_LETTERS[letter] for letter in piece)
        found = _FALLBACK.fullmatch(piece)
        return bytes.fromhex(found[1]) if found else piece.replace("\u2581", " ").encode()
