"""The official truncation: the first and the last half of the token ids of a prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from kvproof.harness.decoding import read_bounded
from kvproof.harness.errors import UsageError

BYTES = "bytes"
_TOKENIZER = "give the tokenizer.json of the model, or bytes"
"""The tokenizer of UTF-8 bytes; needs no file."""


class Tokenizer(Protocol):
    """Converts text to ids and back."""

    name: str
    """Name in records."""

    def encode(self, text: str) -> Sequence[int]:
        """Ids of a text, without special tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; a replacement character for a cut character."""
        ...


class Prompt(NamedTuple):
    """Text of a request."""

    text: str
    cut: bool
    """The middle is missing."""


class Truncation:
    """Cuts prompts to `max_tokens`; 0: no limit."""

    def __init__(self, tokenizer: str = "", max_tokens: int = 0) -> None:
        if max_tokens < 0 or bool(max_tokens) != bool(tokenizer):
            raise UsageError(
                f"max_prompt_tokens {max_tokens} and tokenizer {tokenizer!r} do not fit together",
                f'give both, for example max_prompt_tokens = 120000 and tokenizer = "{BYTES}" or '
                "the path of a tokenizer.json, or neither",
            )
        self.max_tokens = max_tokens
        self._tokenizer = open_tokenizer(tokenizer) if max_tokens else None

    @property
    def rule(self) -> str:
        """Description for records; prompts of two runs are comparable only if it is equal."""
        if self._tokenizer is None:
            return "none"
        return f"first and last half of {self.max_tokens} tokens of {self._tokenizer.name}"

    def apply(self, text: str) -> Prompt:
        """Remove the middle of a prompt that is too long."""
        if self._tokenizer is None:
            return Prompt(text, cut=False)
        ids = self._tokenizer.encode(text)
        if len(ids) <= self.max_tokens:
            return Prompt(text, cut=False)
        head = self.max_tokens // 2
        kept = [*ids[:head], *ids[len(ids) - (self.max_tokens - head) :]]
        return Prompt(self._tokenizer.decode(kept), cut=True)


def open_tokenizer(name: str) -> Tokenizer:
    """`bytes`, or the path of a tokenizer.json. Raises UsageError."""
    return ByteTokenizer() if name == BYTES else FileTokenizer(Path(name))


class ByteTokenizer:
    """Every byte of UTF-8 is a token."""

    name = BYTES

    def encode(self, text: str) -> Sequence[int]:
        """One id per byte."""
        return text.encode()

    def decode(self, ids: Sequence[int]) -> str:
        """Cut characters are replaced."""
        return bytes(ids).decode(errors="replace")


class FileTokenizer:
    """A tokenizer.json, read by the package tokenizers (extra `eval`)."""

    def __init__(self, path: Path) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise UsageError(
                f"tokenizer {str(path)!r} needs the package tokenizers",
                'pip install "kvproof[eval]"',
            ) from error
        try:
            data = read_bounded(path, what="the tokenizer", hint=_TOKENIZER)
            self._tokenizer = tokenizers.Tokenizer.from_str(data.decode())
        except Exception as error:
            raise UsageError(
                f"cannot read the tokenizer {str(path)!r}: {error}", _TOKENIZER
            ) from error
        self.name = f"tokenizer.json {hashlib.sha256(data).hexdigest()[:16]}"

    def encode(self, text: str) -> Sequence[int]:
        """Ids without special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens are left out, as in the official script."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text
