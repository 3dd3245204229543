"""Interface of the server to a model besides its steps: text, chat, images, samples, scores.

A `Language` turns text into tokens and back, and wraps a `Model` of the engine. Only `prepare_*`
and `encode` run outside of the engine's thread, one call at a time.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kvproof.reference.core.identity import Span
from kvproof.reference.model.interface import Model


class PromptError(ValueError):
    """The prompt cannot become a request; the message gives the reason to the client."""


class Abilities(NamedTuple):
    """Supported features of requests; others are refused with these reasons."""

    sampling: bool = False
    """Temperatures above 0, with a seed; penalties and biases."""
    top_logprobs: int | None = None
    """Most alternatives per generated token; None: no log-probabilities at all."""
    prompt_logprobs: bool = False
    """Log-probabilities of the prompt's own tokens (`prompt_logprobs`, `echo` with `logprobs`)."""
    images: bool = False
    no_images: str = ""
    """Why a model that has an encoder of images shows none."""
    chat: bool = True
    template: frozenset[str] = frozenset()
    """Variables of the chat template that a request may set; `tools` if it shows tools."""
    experts: bool = False
    """Routed experts are recorded (R1)."""


class SamplingOptions(NamedTuple):
    """How the tokens of one request are chosen, and which scores are returned."""

    temperature: float = 0.0
    """0: always the likeliest token, after penalties and biases."""
    top_p: float = 1.0
    top_k: int = 0
    """Likeliest tokens to draw from; 0: all."""
    min_p: float = 0.0
    """Least probability of a token that is drawn, as a share of the likeliest one's."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that the answer has."""
    frequency_penalty: float = 0.0
    """Subtracted as often as the answer has the token."""
    repetition_penalty: float = 1.0
    """Divides the logits, or multiplies negative ones, of tokens in prompt or answer."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, addend of its logit)."""
    seed: int | None = None
    """None: the server draws one for each prompt."""
    top_logprobs: int | None = None
    """Alternatives per generated token; None: no log-probabilities."""
    prompt_logprobs: int | None = None
    """Alternatives per prompt token; None: the prompt is not scored."""


def plain(sampling: SamplingOptions) -> bool:
    """Return whether logits are taken as they are."""
    penalties = (sampling.presence_penalty, sampling.frequency_penalty)
    return not (any(penalties) or sampling.logit_bias or sampling.repetition_penalty != 1)


def seeded(sampling: SamplingOptions) -> SamplingOptions:
    """Give a request that samples a seed, if it has none."""
    if sampling.temperature and sampling.seed is None:
        return sampling._replace(seed=secrets.randbits(63))
    return sampling


class Score(NamedTuple):
    """Log-probability of one token where it stands, natural logarithm, before temperature."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token, log-probability), the likeliest first."""
    rank: int = 0
    """Tokens that are at least as likely, itself included; 0: unknown."""


class Image(NamedTuple):
    """The bytes of an image file, as the client sent them."""

    data: bytes
    media_type: str


class Part(NamedTuple):
    """A piece of a chat message: text or, in its place, an image."""

    text: str = ""
    image: Image | None = None


class Message(NamedTuple):
    """One turn of a chat."""

    role: str
    parts: tuple[Part, ...]


class Chat(NamedTuple):
    """A chat, and the other variables of its template."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """Descriptions of tools, as the client wrote them; none is ever called."""
    variables: Mapping[str, Any] = {}
    """`chat_template_kwargs`."""


class Prepared(NamedTuple):
    """A prompt as the engine takes it."""

    tokens: tuple[int, ...]
    spans: tuple[Span, ...] = ()
    media: object = None
    """Data that the language needs to encode the spans; the server passes it on to `begin`."""


class Detokenizer(Protocol):
    """Text of one answer; a piece that `add` returned is final."""

    def add(self, token: int) -> str:
        """Return the text that is certain since the last call; empty inside a character."""

    def end(self) -> str:
        """Return the rest of the text when no token follows."""


class Language(Protocol):
    """A model with its tokenizer. Raises PromptError from `prepare_text` and `prepare_chat`."""

    name: str
    """Default id in `/v1/models`."""
    abilities: Abilities
    vocabulary: int
    """Token ids are below."""
    max_len: int
    """Tokens of the longest prompt with its answer."""
    ends: frozenset[int]

    @property
    def model(self) -> Model:
        """The model that the engine steps."""

    def prepare_text(self, text: str) -> Prepared:
        """Tokenize a prompt of `/v1/completions`."""

    def prepare_chat(self, chat: Chat) -> Prepared:
        """Apply the chat template, and place the images."""

    def detokenizer(self) -> Detokenizer:
        """Return a new one."""

    def token_bytes(self, token: int) -> bytes:
        """Return the text of one token by itself."""

    def begin(self, request_id: str, prepared: Prepared, sampling: SamplingOptions) -> None:
        """Prepare for a request before its first step; engine's thread. Raises PromptError."""

    def scores(self, request_id: str, tokens: Sequence[int]) -> Sequence[Score]:
        """Return one score for each of `tokens`, the ones generated since the last call."""

    def prompt_scores(self, request_id: str) -> Sequence[Score]:
        """Return the scores of the prompt's tokens but the first, once all are computed."""

    def end(self, request_id: str) -> None:
        """Forget a request that has ended, however it did; engine's thread."""
