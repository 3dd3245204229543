"""The symbolic model as a language: bytes are tokens, and answers are deterministic.

Its text is random letters and spaces, until one of the `END` tokens occurs. It answers greedily
only; its log-probabilities are those of `symbolic_scores`. As in real models, answers do not depend
on a salt: a client may compute a prompt again under a new one, and compare.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.identity import Span
from kvproof.reference.core.media_hash import content_hash
from kvproof.reference.model.interface import Sample, Work
from kvproof.reference.model.symbolic import SymbolicModel
from kvproof.reference.server.language.language import (
    Abilities,
    Chat,
    Prepared,
    SamplingOptions,
    Score,
)
from kvproof.reference.server.language.symbolic_scores import score_words

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
        self.model = SymbolicModel(config, vocabulary=answers, salted=False)
        self.max_len = max_len
        self.abilities = Abilities(
            top_logprobs=20,
            prompt_logprobs=True,
            images=True,
            experts=config.return_routed_experts,
        )
        self._answers = answers
        self._scored: dict[str, _Scored] = {}

    def prepare_text(self, text: str) -> Prepared:
        """See `Language`."""
        return Prepared(tuple(1 + TOKENS[byte] for byte in text.encode()))

    def prepare_chat(self, chat: Chat) -> Prepared:
        """Write each turn as `<role>`, its parts and a new line, and open the answer."""
        tokens: list[int] = []
        spans = []
        for role, parts in chat.messages:
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
        """See `Language`."""
        if sampling.top_logprobs is not None or sampling.prompt_logprobs is not None:
            self._scored[request_id] = _Scored(prepared.tokens, sampling)
            self.model.on_hidden = self._keep

    def _keep(self, work: Work, hidden: Sequence[int], sample: Sample) -> None:
        """Keep the hidden words that scores are made of."""
        if scored := self._scored.get(work.request_id):
            scored.keep(work, hidden, sample)

    def scores(self, request_id: str, tokens: Sequence[int]) -> Sequence[Score]:
        """See `Language`."""
        scored = self._scored[request_id]
        places = sorted(scored.sampled)[: len(tokens)]
        words = [scored.sampled.pop(place) for place in places]
        return self._score(words, tokens, scored.sampling.top_logprobs)

    def prompt_scores(self, request_id: str) -> Sequence[Score]:
        """See `Language`."""
        scored = self._scored[request_id]
        words, scored.words = scored.words[:-1], []
        return self._score(words, scored.prompt[1:], scored.sampling.prompt_logprobs)

    def _score(self, words: Sequence[int], tokens: Sequence[int], top: int | None) -> list[Score]:
        return score_words(
            words, tokens, top or 0, vocabulary=self.vocabulary, answers=self._answers
        )

    def end(self, request_id: str) -> None:
        """See `Language`."""
        self._scored.pop(request_id, None)
        if not self._scored:
            self.model.on_hidden = None


class _Scored:
    """Hidden words of a request whose tokens are scored."""

    def __init__(self, prompt: tuple[int, ...], sampling: SamplingOptions) -> None:
        self.prompt, self.sampling = prompt, sampling
        self.words = [0] * len(prompt) if sampling.prompt_logprobs is not None else []
        """Of each position of the prompt, if that is scored."""
        self.sampled: dict[int, int] = {}
        """Position of a generated token -> the hidden word before it, until it is scored."""

    def keep(self, work: Work, hidden: Sequence[int], sample: Sample) -> None:
        """Take the words of positions [work.start, work.stop)."""
        stop = min(work.stop, len(self.words))
        if work.start < stop:
            self.words[work.start : stop] = hidden[: stop - work.start]
        if sample.token is not None and self.sampling.top_logprobs is not None:
            first = work.known - work.drafts
            for place in range(first, first + sample.accepted + 1):
                self.sampled[place] = hidden[place - 1 - work.start]
