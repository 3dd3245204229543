"""Options of a request, checked as far as possible without the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from kvproof.reference.core.identity import DEFAULT_NAMESPACE, Namespace
from kvproof.reference.server.errors import ApiError, invalid
from kvproof.reference.server.images import image_of
from kvproof.reference.server.language.language import (
    Abilities,
    Chat,
    Message,
    Part,
    SamplingOptions,
)
from kvproof.reference.server.options import ServerConfig
from kvproof.reference.server.wire import ChatBody, ChatMessage, Common, CompletionBody, TextPart

Raw: TypeAlias = "str | tuple[int, ...] | Chat"
"""A text, token ids, or a chat."""

MOST_STOPS = 4
LONGEST_STOP = 256
"""Characters; and of a salt."""
MOST_LOGPROBS = 5
MOST_TOP_LOGPROBS = 20
MOST_CHOICES = 128
"""Answers to each prompt."""
COMPLETION_TOKENS = 16
"""Tokens of a completion that names no number; chats go on as far as they may."""


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """The checked options of one request."""

    prompts: tuple[Raw, ...]
    sampling: SamplingOptions
    n: int
    """Answers to each prompt."""
    max_tokens: int | None
    stops: tuple[str, ...]
    stop_tokens: frozenset[int]
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

    @property
    def answers(self) -> int:
        """Return the number of choices."""
        return len(self.prompts) * self.n

    def sampling_of(self, choice: int) -> SamplingOptions:
        """Return the options of one of the n answers; as in vLLM, each has a seed of its own."""
        seed = self.sampling.seed
        return self.sampling if seed is None else self.sampling._replace(seed=seed + choice)


class Checker:
    """Checks values against the model's abilities and the server's limits. Raises ApiError."""

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
        options = self._options(body, (self._chat(body),), top)
        if body.max_completion_tokens is None:
            return options
        if body.max_tokens is not None:
            raise invalid("max_tokens", body.max_tokens, "absent with max_completion_tokens")
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
            n=self._choices(body.n),
            max_tokens=self._most("max_tokens", body.max_tokens, least=0 if echo else 1),
            stops=_stops(body.stop),
            stop_tokens=frozenset(self._tokens("stop_token_ids", body.stop_token_ids or ())),
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
        if body.seed is not None and not -(2**63) <= body.seed < 2**63:
            raise invalid("seed", body.seed, "a whole number of 64 bits", 7)
        if body.prompt_logprobs is not None:
            self._prompt_logprobs(body, body.prompt_logprobs)
            scored = body.prompt_logprobs if scored is None else scored
        options = SamplingOptions(
            **_numbers(body),
            top_k=_top_k(body.top_k),
            logit_bias=self._biases(body.logit_bias or {}),
            seed=body.seed,
            top_logprobs=top,
            prompt_logprobs=scored,
        )
        if not self._abilities.sampling:
            _require_greedy(options)
        return options

    def _biases(self, biases: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
        rule = f"token ids from 0 to {self._vocabulary - 1}, each with a number from -100 to 100"
        for token, bias in biases.items():
            known = token.isascii() and token.isdecimal() and int(token[:20]) < self._vocabulary
            if not (known and -100 <= bias <= 100):
                raise invalid("logit_bias", {token[:40]: bias}, rule, {"7": -100})
        return tuple((int(token), bias) for token, bias in biases.items())

    def _choices(self, n: int | None) -> int:
        if n is not None and not 1 <= n <= MOST_CHOICES:
            raise invalid("n", n, f"a whole number from 1 to {MOST_CHOICES}", 4)
        return n or 1

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
        return self._tokens(name, ids)

    def _tokens(self, name: str, ids: Sequence[object]) -> tuple[int, ...]:
        for place, token in enumerate(ids):
            if not (isinstance(token, int) and 0 <= token < self._vocabulary):
                rule = f"a token id from 0 to {self._vocabulary - 1}"
                raise invalid(f"{name}[{place}]", token, rule)
        return tuple(token for token in ids if isinstance(token, int))

    def _chat(self, body: ChatBody) -> Chat:
        tools, variables = body.tools or (), body.chat_template_kwargs or {}
        if tools and "tools" not in self._abilities.template:
            raise ApiError(400, "this model's chat template shows no tools", param="tools")
        able = sorted(self._abilities.template - {"tools"})
        for name in variables:
            if name not in able:
                rule = f"variables of the model's chat template: {', '.join(able) or 'it has none'}"
                raise invalid("chat_template_kwargs", name[:80], rule)
        return Chat(self._messages(body.messages), tuple(tools), variables)

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
            why = f": {self._abilities.no_images}" if self._abilities.no_images else ""
            raise ApiError(400, f"{name}: this model reads no images{why}", param=name)
        return Part(image=image_of(url, name, self._config.max_image_bytes))


_RANGES = {
    "temperature": (0.0, 2.0, 0.0),
    "min_p": (0.0, 1.0, 0.0),
    "presence_penalty": (-2.0, 2.0, 0.0),
    "frequency_penalty": (-2.0, 2.0, 0.0),
}
"""Field -> least, most, neutral value, as in vLLM."""


def _numbers(body: Common) -> dict[str, Any]:
    """Check the fields of `SamplingOptions` that are plain numbers."""
    found = {}
    for name, (least, most, neutral) in _RANGES.items():
        number = getattr(body, name)
        if number is not None and not least <= number <= most:
            raise invalid(name, number, f"a number from {least:g} to {most:g}", neutral)
        found[name] = neutral if number is None else float(number)
    for name in ("top_p", "repetition_penalty"):
        number = getattr(body, name)
        most, rule = (1, " and at most 1") if name == "top_p" else (float("inf"), "")
        if number is not None and not 0 < number <= most:
            raise invalid(name, number, f"a number above 0{rule}", 1)
        found[name] = 1.0 if number is None else float(number)
    return found


def _top_k(count: int | None) -> int:
    if count is not None and not -1 <= count < 1 << 31:
        raise invalid("top_k", count, "a whole number from 1, or 0 for all tokens", 0)
    return max(0, count or 0)


def _require_greedy(options: SamplingOptions) -> None:
    """Refuse options that change the tokens of a model whose answers follow from its memory."""
    if options.temperature:
        rule = "0: this model answers greedily only"
        raise invalid("temperature", options.temperature, rule)
    for name in ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"):
        value, neutral = getattr(options, name), getattr(SamplingOptions(), name)
        if value != neutral:
            rule = f"{neutral or 0:g}" if name != "logit_bias" else "absent"
            raise invalid(name, value, f"{rule}: this model has one next token only")


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
