"""Requests in the clients' form, and the expected answer of each prompt."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

from kvproof.reference.core.identity import Namespace
from kvproof.reference.server.language.language import Chat, Image, Message, Part, Prepared
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.reference.engine.expected_tokens import Direct
from kvproof.suites.reference.http_server.subject import MODEL, Subject
from kvproof.suites.reference.http_server.tracked_requests import How, Limits, Order, answer

PNG = b"\x89PNG\r\n\x1a\n"
ROLES = ("user", "assistant", "user")
END = 0


class Request(NamedTuple):
    """A request that was not sent yet."""

    path: str
    body: dict[str, Any]
    orders: list[Order]
    how: How


class Asking:
    def __init__(self, subject: Subject, config: Config, letters: Sequence[str]) -> None:
        self._subject, self._config, self._letters = subject, config, letters
        self._groups = subject.engine.config.cache.layout.groups

    def completion(self, prompts: list[list[int]], *, text: bool, how: How) -> Request:
        """Write prompts as text or as ids; a single one not as a list of one."""
        written: list[Any] = list(prompts)
        if text:
            written = ["".join(self._letters[token] for token in prompt) for prompt in prompts]
        body = {"prompt": written if len(written) > 1 else written[0], "echo": how.echo}
        if how.logprobs is not None:
            body["logprobs"] = how.logprobs
        prepared = [Prepared(tuple(prompt)) for prompt in prompts]
        return self._request("/v1/completions", body, prepared, how)

    def chat(self, words: list[str], image: int | None, *, how: How) -> Request:
        """Write a chat of alternating turns; the first one may show an image."""
        data = None if image is None else PNG + bytes([image])
        texts = [[Part(text)] for text in words]
        if data:
            texts[0].append(Part(image=Image(data, "image/png")))
        messages = [Message(role, tuple(parts)) for role, parts in zip(ROLES, texts, strict=False)]
        turns = [
            {"role": role, "content": [_written(part) for part in parts]}
            for role, parts in messages
        ]
        body: dict[str, Any] = {"messages": turns}
        if how.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": how.logprobs}
        prepared = self._subject.language.prepare_chat(Chat(tuple(messages)))
        return self._request("/v1/chat/completions", body, [prepared], how)

    def _request(
        self, path: str, body: dict[str, Any], prepared: Sequence[Prepared], how: How
    ) -> Request:
        body |= {
            "model": MODEL,
            "max_completion_tokens" if "messages" in body else "max_tokens": how.most,
            "stop": how.stops[0] if len(how.stops) == 1 else how.stops,
            "stream": how.stream,
            "ignore_eos": how.ignore_ends,
            "return_token_ids": how.token_ids,
        }
        body |= {"cache_salt": how.salt} if how.salt else {}
        body |= {"stream_options": {"include_usage": how.usage}} if how.stream else {}
        body |= {"n": how.n} if how.n > 1 else {}
        orders = [self._order(each, how) for each in prepared for _ in range(how.n)]
        return Request(path, body, orders, how)

    def _order(self, prepared: Prepared, how: How) -> Order:
        tokens, spans, config = prepared.tokens, prepared.spans, self._config
        namespace = Namespace(salt=how.salt)
        ends = frozenset[int]() if how.ignore_ends else frozenset({END})
        wanted = answer(
            Direct(self._groups, namespace, spans, 0),
            tokens,
            Limits(how.most, tuple(how.stops), ends),
            self._letters[: config["vocabulary"]],
        )
        blocks = -(-(len(tokens) + how.most - 1) // config["block_size"])
        return Order(
            tokens, spans, namespace, wanted, how.most,
            reads=not (how.echo and how.logprobs is not None),
            fits=blocks < config["num_blocks"],
        )  # fmt: skip


def _written(part: Part) -> dict[str, Any]:
    if part.image is None:
        return {"type": "text", "text": part.text}
    data = base64.b64encode(part.image.data).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
