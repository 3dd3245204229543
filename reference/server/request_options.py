"""Options of a request, checked as far as possible without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from kvproof.reference.core.identity import DEFAULT_NAMESPACE, Namespace
from kvproof.reference.server.errors import ApiError, invalid
from kvproof.reference.server.images import image_of
from kvproof.reference.server.language.language import Abilities, Message, Part, SamplingOptions
from kvproof.reference.server.options import ServerConfig
from kvproof.reference.server.wire import ChatBody, ChatMessage, Common, CompletionBody, TextPart

Raw: TypeAlias = "str | tuple[int, ...] | tuple[Message, ...]"
"""A text, token ids, or a chat."""

MOST_STOPS = 4
LONGEST_STOP = 256
"""Characters; and of a salt."""
MOST_LOGPROBS = 5
MOST_TOP_LOGPROBS = 20
COMPLETION_TOKENS = 16
"""Of a completion that names no number; chats go on as far as they may."""


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """The checked options of one request."""

    prompts: tuple[Raw, ...]
    sampling: SamplingOptions
    max_tokens: int | None
    stops: tuple[str, ...]
    namespace: Namespace
    stream: bool
    usage: bool
    """Whether a stream ends with its usage."""
    echo: bool = False
    prompt_logprobs: int | None = None
    """Alternatives per prompt token that the answer lists; None: no list."""
    ignore_ends: bool
    token_ids: bool
    experts: bool


class Checker:
    """Checks values against what the model can do and the server allows. Raises ApiError."""

    def __init__(self, config: ServerConfig, abilities: Abilities, vocabulary: int) -> None:
        self._config, self._abilities, self._vocabulary = config, abilities, vocabulary

    def completion(self, body: CompletionBody) -> RequestOptions:
        """Check a body of `/v1/completions`."""
        top, echo = body.logprobs, bool(body.echo)
        if top is not None:
            self._top("logprobs", top, MOST_LOGPROBS)
        scored = max(top, body.prompt_logprobs or 0) if echo and top is not None else None
        if scored is not None and not self._abilities.prompt_logprobs:
            raise ApiError(
                400, "echo with logprobs is not supported by this model; ask for one", param="echo"
            )
        options = self._options(body, self._prompts(body.prompt), top, echo=echo, scored=scored)
        usual = min(COMPLETION_TOKENS, self._config.max_tokens)
        return options if options.max_tokens is not None else replace(options, max_tokens=usual)

    def chat(self, body: ChatBody) -> RequestOptions:
        """Check a body of `/v1/chat/completions`."""
        if not self._abilities.chat:
            raise ApiError(400, "this model has no chat template; use /v1/completions")
        if body.top_logprobs is not None:
            if not body.logprobs:
                raise invalid("top_logprobs", body.top_logprobs, "absent unless logprobs is true")
            self._top("top_logprobs", body.top_logprobs, MOST_TOP_LOGPROBS)
        top = (body.top_logprobs or 0) if body.logprobs else None
        if top is not None:
            self._top("logprobs", top, MOST_TOP_LOGPROBS)
        options = self._options(body, (self._messages(body.messages),), top)
        if body.max_completion_tokens is None:
            return options
        if body.max_tokens is not None:
            raise invalid("max_tokens", body.max_tokens, "absent beside max_completion_tokens")
        most = self._most("max_completion_tokens", body.max_completion_tokens)
        return replace(options, max_tokens=most)

    def _options(
        self,
        body: Common,
        prompts: tuple[Raw, ...],
        top: int | None,
        *,
        echo: bool = False,
        scored: int | None = None,
    ) -> RequestOptions:
        if body.stream_options and not body.stream:
            raise invalid("stream_options", body.stream_options, "absent unless stream is true")
        if body.return_routed_experts and not self._abilities.experts:
            raise invalid("return_routed_experts", "true", "false: this server records no experts")
        return RequestOptions(
            prompts=prompts,
            sampling=self._sampling(body, top, scored=scored),
            max_tokens=self._most("max_tokens", body.max_tokens, least=0 if echo else 1),
            stops=_stops(body.stop),
            namespace=_namespace(body.cache_salt),
            stream=bool(body.stream),
            usage=bool(body.stream_options and body.stream_options.include_usage),
            echo=echo,
            prompt_logprobs=body.prompt_logprobs,
            ignore_ends=body.ignore_eos,
            token_ids=body.return_token_ids,
            experts=body.return_routed_experts,
        )

    def _sampling(self, body: Common, top: int | None, *, scored: int | None) -> SamplingOptions:
        """Check how tokens are chosen; `scored`: alternatives per prompt token for an echo."""
        temperature = 0.0 if body.temperature is None else body.temperature
        top_p = 1.0 if body.top_p is None else body.top_p
        if not 0 <= temperature <= 2:
            raise invalid("temperature", temperature, "a number from 0 to 2", 0)
        if not 0 < top_p <= 1:
            raise invalid("top_p", top_p, "a number above 0 and at most 1", 1)
        if temperature and not self._abilities.sampling:
            raise invalid("temperature", temperature, "0: this model answers greedily only")
        if body.seed is not None and not -(2**63) <= body.seed < 2**63:
            raise invalid("seed", body.seed, "a whole number of 64 bits", 7)
        if body.prompt_logprobs is not None:
            self._prompt_logprobs(body, body.prompt_logprobs)
            scored = body.prompt_logprobs if scored is None else scored
        return SamplingOptions(temperature, top_p, body.seed, top, scored)

    def _prompt_logprobs(self, body: Common, count: int) -> None:
        """Check as vLLM does: not in a stream, and no more than for generated tokens."""
        if not self._abilities.prompt_logprobs:
            raise invalid("prompt_logprobs", count, "absent: this model scores no prompt")
        if body.stream:
            raise invalid("prompt_logprobs", count, "absent in a stream")
        self._top("prompt_logprobs", count, MOST_TOP_LOGPROBS)

    def _top(self, name: str, count: int, most: int) -> None:
        able = self._abilities.top_logprobs
        if able is None:
            raise invalid(name, count, "absent: this model gives no log-probabilities")
        if not 0 <= count <= min(able, most):
            raise invalid(name, count, f"a whole number from 0 to {min(able, most)}")

    def _most(self, name: str, count: int | None, *, least: int = 1) -> int | None:
        most = self._config.max_tokens
        if count is not None and not least <= count <= most:
            raise invalid(name, count, f"a whole number from {least} to {most}", min(16, most))
        return count

    # --- prompts ---

    def _prompts(self, prompt: str | list[str | int | list[int]]) -> tuple[Raw, ...]:
        if isinstance(prompt, str):
            return (_text("prompt", prompt),)
        if not prompt:
            raise ApiError(400, "prompt must not be empty", param="prompt")
        if all(isinstance(each, int) for each in prompt):
            return (self._ids("prompt", prompt),)
        if len(prompt) > self._config.max_prompts:
            rule = f"at most {self._config.max_prompts} prompts in one request"
            raise invalid("prompt", f"{len(prompt)} prompts", rule)
        if not (
            all(isinstance(each, str) for each in prompt)
            or all(isinstance(each, list) for each in prompt)
        ):
            raise ApiError(400, "prompt mixes texts, ids and lists of ids", param="prompt")
        return tuple(self._prompt(f"prompt[{place}]", each) for place, each in enumerate(prompt))

    def _prompt(self, name: str, prompt: str | int | list[int]) -> Raw:
        if isinstance(prompt, str):
            return _text(name, prompt)
        assert isinstance(prompt, list)
        return self._ids(name, prompt)

    def _ids(self, name: str, ids: Sequence[object]) -> tuple[int, ...]:
        if not ids:
            raise ApiError(400, f"{name} must not be empty", param=name)
        for place, token in enumerate(ids):
            if not (isinstance(token, int) and 0 <= token < self._vocabulary):
                rule = f"a token id from 0 to {self._vocabulary - 1}"
                raise invalid(f"{name}[{place}]", token, rule)
        return tuple(token for token in ids if isinstance(token, int))

    def _messages(self, messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
        if not messages:
            raise ApiError(400, "messages must not be empty", param="messages")
        turns = tuple(self._message(f"messages[{i}]", each) for i, each in enumerate(messages))
        images = sum(part.image is not None for turn in turns for part in turn.parts)
        if images > self._config.max_images:
            rule = f"at most {self._config.max_images} in one request"
            raise invalid("messages", f"with {images} images", rule)
        return turns

    def _message(self, name: str, message: ChatMessage) -> Message:
        if isinstance(message.content, str):
            return Message(message.role, (Part(message.content),))
        if not message.content:
            raise ApiError(400, f"{name}.content must not be empty", param=f"{name}.content")
        return Message(
            message.role,
            tuple(
                Part(part.text)
                if isinstance(part, TextPart)
                else self._image(f"{name}.content[{place}].image_url.url", part.image_url.url)
                for place, part in enumerate(message.content)
            ),
        )

    def _image(self, name: str, url: str) -> Part:
        if not self._abilities.images:
            raise ApiError(400, f"{name}: this model reads no images", param=name)
        return Part(image=image_of(url, name, self._config.max_image_bytes))


def _text(name: str, text: str) -> str:
    if not text:
        raise ApiError(400, f"{name} must not be empty", param=name)
    return text


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MOST_STOPS:
        raise invalid("stop", f"{len(stops)} texts", f"at most {MOST_STOPS} texts")
    for each in stops:
        if not 0 < len(each) <= LONGEST_STOP:
            raise invalid("stop", each, f"a text of 1 to {LONGEST_STOP} characters", "\n\n")
    return stops


def _namespace(salt: str | None) -> Namespace:
    if salt is None:
        return DEFAULT_NAMESPACE
    if not 0 < len(salt) <= LONGEST_STOP:
        raise invalid("cache_salt", salt, f"a text of 1 to {LONGEST_STOP} characters", "tenant-7")
    return Namespace(salt=salt)
