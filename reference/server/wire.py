"""Bodies of requests, as they arrive; other fields are refused."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

TokenIds: TypeAlias = list[int]


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a stream."""

    include_usage: bool = False


class Common(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of both endpoints; those from `top_k` on are extensions."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    """Token id, written as a text -> addend of its logit."""
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    """Tokens that end an answer and belong to it."""
    prompt_logprobs: int | None = None
    """Alternatives to each token of the prompt, which is computed without the cache."""
    cache_salt: str | None = None
    """Requests share cached blocks only with those of the same salt."""
    ignore_eos: bool = False
    """Go on after tokens that end an answer."""
    return_token_ids: bool = False
    return_routed_experts: bool = False


class CompletionBody(Common, frozen=True, kw_only=True):
    """`/v1/completions`."""

    prompt: str | list[str | int | TokenIds]
    """One text, one prompt as token ids, or a list of such."""
    echo: bool | None = False
    logprobs: int | None = None


class ImageUrl(Struct, frozen=True, forbid_unknown_fields=True):
    """`detail` is accepted as `auto` only: images are never scaled by wish."""

    url: str
    detail: Literal["auto"] = "auto"


class TextPart(Struct, frozen=True, tag="text", forbid_unknown_fields=True):
    """A piece of text."""

    text: str


class ImagePart(Struct, frozen=True, tag="image_url", forbid_unknown_fields=True):
    """An image as a data URL."""

    image_url: ImageUrl


class ChatMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart | ImagePart]


class ChatBody(Common, frozen=True, kw_only=True):
    """`/v1/chat/completions`."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    """Descriptions for the chat template; answers are text, and no tool is ever called."""
    chat_template_kwargs: dict[str, Any] | None = None
