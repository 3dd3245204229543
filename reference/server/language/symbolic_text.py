"""The symbolic model as a language: bytes are tokens, and answers are deterministic.

It has no distribution: the next token is the only one possible, so its log-probability is 0. Its
text is random letters and spaces, until one of the `END` tokens occurs.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.identity import Span
from kvproof.reference.core.media_hash import content_hash
from kvproof.reference.model.symbolic import SymbolicModel
from kvproof.reference.server.language.language import (
    Abilities,
    Message,
    Prepared,
    SamplingOptions,
    Score,
)

END = 0
IMAGE = 257
IMAGE_TOKENS = 16
"""Placeholders of each image, for any size."""
_FIRST = b"etaoinshrdlucmfwypvbgkjqxz "
ORDER = _FIRST + bytes(byte for byte in range(256) if byte not in _FIRST)
"""Token i + 1 is byte ORDER[i]; the letters come first, so that the first tokens are readable."""
TOKENS = bytes(ORDER.index(byte) for byte in range(256))
READABLE = 1 + len(_FIRST)
"""The end, and the letters with the space: a vocabulary to answer with."""


class Utf8Detokenizer:
    """Bytes to text; a character appears once it is whole; invalid bytes become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """See `Detokenizer`."""
        return self._decoder.decode(_bytes_of(token))

    def end(self) -> str:
        """See `Detokenizer`."""
        return self._decoder.decode(b"", final=True)


def _bytes_of(token: int) -> bytes:
    return ORDER[token - 1 : token] if END < token <= len(ORDER) else b""


class SymbolicText:
    """A `Language`; `answers`: number of first token ids that the model may output."""

    ends = frozenset({END})
    vocabulary = IMAGE + 1
    name = "symbolic"

    def __init__(self, config: CacheConfig, *, max_len: int, answers: int = READABLE) -> None:
        self.model = SymbolicModel(config, vocabulary=answers)
        self.max_len = max_len
        self.abilities = Abilities(
            top_logprobs=20, images=True, experts=config.return_routed_experts
        )

    def prepare_text(self, text: str) -> Prepared:
        """See `Language`."""
        return Prepared(tuple(1 + TOKENS[byte] for byte in text.encode()))

    def prepare_chat(self, messages: Sequence[Message]) -> Prepared:
        """Write each turn as `<role>`, its parts and a new line, and open the answer."""
        tokens: list[int] = []
        spans = []
        for role, parts in messages:
            tokens += self.prepare_text(f"<{role}>").tokens
            for part in parts:
                tokens += self.prepare_text(part.text).tokens
                if part.image:
                    content = content_hash(part.image.data)
                    spans.append(Span("image", len(tokens), IMAGE_TOKENS, content))
                    tokens += [IMAGE] * IMAGE_TOKENS
            tokens += self.prepare_text("\n").tokens
        return Prepared((*tokens, *self.prepare_text("<assistant>").tokens), tuple(spans))

    def detokenizer(self) -> Utf8Detokenizer:
        """See `Language`."""
        return Utf8Detokenizer()

    def token_bytes(self, token: int) -> bytes:
        """See `Language`."""
        return _bytes_of(token)

    def begin(self, request_id: str, prepared: Prepared, sampling: SamplingOptions) -> None:
        """See `Language`; the answer follows from the tokens alone."""

    def scores(self, request_id: str, tokens: Sequence[int]) -> Sequence[Score]:
        """See `Language`: every token has log-probability 0."""
        del request_id
        return [Score(token, 0.0, ((token, 0.0),)) for token in tokens]

    def prompt_scores(self, request_id: str) -> Sequence[Score]:
        """Never called: `abilities` excludes it, so such a request is refused on arrival."""
        raise NotImplementedError(f"the symbolic model scores no prompt, asked by {request_id!r}")

    def end(self, request_id: str) -> None:
        """See `Language`."""
