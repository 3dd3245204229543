"""Invalid requests, each with the status and message of the expected error.

for case in CASES: send(case) -> case.status, an OpenAI error with case.message
"""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
JSON = "application/json"
YES = True
PNG = b"\x89PNG\r\n\x1a\n" + bytes(24)
"""Begins like a PNG file; enough without decoding."""


class Malformed(NamedTuple):
    """One request and its expected error."""

    name: str
    path: str
    body: bytes
    status: int
    reported: str
    """Part of the message."""
    param: str | None = None
    """Parameter that the error names."""
    content_type: str = JSON
    method: str = "POST"


def data_url(data: bytes, kind: str = "image/png") -> str:
    """Return an image as data URL."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def cases(model: str, *, max_len: int, max_tokens: int, max_body_bytes: int) -> list[Malformed]:
    """Return all cases for a server that serves `model` greedily, with these limits."""
    return [
        *_bodies(model, max_body_bytes),
        *_paths(model),
        *_prompts(model, max_len),
        *_numbers(model, max_tokens),
        *_texts(model),
        *_unsupported(model),
        *_unable(model),
        *_chats(model),
        *_images(model),
    ]


def _completion(
    model: str, name: str, reported: str, param: str | None, /, **fields: Any
) -> Malformed:
    body = {"model": model, "prompt": "a prompt"} | fields
    return Malformed(name, COMPLETIONS, json.dumps(body).encode(), 400, reported, param)


def _chat(model: str, name: str, reported: str, param: str | None, /, **fields: Any) -> Malformed:
    body = {"model": model, "messages": [{"role": "user", "content": "a turn"}]} | fields
    return Malformed(name, CHAT, json.dumps(body).encode(), 400, reported, param)


def _bodies(model: str, most: int) -> list[Malformed]:
    good = json.dumps({"model": model, "prompt": "a"}).encode()
    nan = b'{"model": "%b", "prompt": "a", "temperature": NaN}' % model.encode()
    inf = b'{"model": "%b", "prompt": "a", "temperature": 1e999}' % model.encode()
    huge = b'{"model": "%b", "prompt": "a", "max_tokens": 1%b}' % (model.encode(), b"0" * 400)
    surrogate = b'{"model": "%b", "prompt": "\\ud800"}' % model.encode()
    deep = b"[" * min(most, 50_000)
    return [
        Malformed("no body", COMPLETIONS, b"", 400, "not JSON"),
        Malformed("no JSON", COMPLETIONS, b"prompt=a", 400, "not JSON"),
        Malformed("half of a JSON object", COMPLETIONS, good[:-2], 400, "not JSON"),
        Malformed("two JSON objects", CHAT, good + good, 400, "not JSON"),
        Malformed("JSON that is no object", COMPLETIONS, b"[1, 2]", 400, "must be a JSON object"),
        Malformed("JSON nested without end", COMPLETIONS, deep, 400, "not JSON"),
        Malformed("invalid UTF-8", COMPLETIONS, good.replace(b'"a"', b'"\xff"'), 400, "not JSON"),
        Malformed("UTF-16", COMPLETIONS, good.decode().encode("utf-16"), 400, "not JSON"),
        Malformed("half of a surrogate pair", COMPLETIONS, surrogate, 400, "not JSON"),
        Malformed("temperature NaN", COMPLETIONS, nan, 400, "not JSON"),
        Malformed("temperature infinite", COMPLETIONS, inf, 400, "not JSON"),
        Malformed("max_tokens of 400 digits", COMPLETIONS, huge, 400, "from 1", "max_tokens"),
        Malformed("body too large", COMPLETIONS, b" " * (most + 1), 413, "larger than"),
        Malformed("no content type", COMPLETIONS, good, 415, "application/json", None, ""),
        Malformed(
            "a form", COMPLETIONS, b"prompt=a", 415, "application/json", None,
            "application/x-www-form-urlencoded",
        ),
    ]  # fmt: skip


def _paths(model: str) -> list[Malformed]:
    good = json.dumps({"model": model, "prompt": "a"}).encode()
    return [
        Malformed("unknown path", "/v1/embeddings", good, 404, "Not Found"),
        Malformed("wrong method", COMPLETIONS, b"", 405, "Not Allowed", None, JSON, "GET"),
        Malformed("unknown model by path", "/v1/models/gpt", b"", 404, "'gpt'", "model", "", "GET"),
    ]


def _prompts(model: str, max_len: int) -> list[Malformed]:
    def of(name: str, reported: str, prompt: object, param: str = "prompt") -> Malformed:
        return _completion(model, name, reported, param, prompt=prompt)

    no_model = json.dumps({"prompt": "a"}).encode()
    no_prompt = json.dumps({"model": model}).encode()
    other = _completion(model, "unknown model", "'other'", "model", model="other")
    long = [1] * (max_len + 1)
    return [
        Malformed("no model", COMPLETIONS, no_model, 400, "model is missing", "model"),
        Malformed("no prompt", COMPLETIONS, no_prompt, 400, "prompt is missing", "prompt"),
        other._replace(status=404),
        _completion(model, "model is no text", "a string", "model", model=7),
        of("prompt null", "prompt", None),
        of("prompt is a number", "prompt", 7),
        of("prompt is an object", "prompt", {"text": "a"}),
        of("empty prompt", "must not be empty", ""),
        of("empty list of prompts", "must not be empty", []),
        of("a prompt of the list is empty", "must not be empty", ["a", ""], "prompt[1]"),
        of("empty token ids", "must not be empty", [[]], "prompt[0]"),
        of("text and ids mixed", "mixes", ["a", 1]),
        of("true as a token id", "prompt", [True], "prompt[0]"),
        of("half a token id", "prompt", [1.5], "prompt[0]"),
        of("negative token id", "from 0", [1, -1], "prompt[1]"),
        of("token id beyond the vocabulary", "from 0", [10**9], "prompt[0]"),
        of("token id beyond 64 bits", "", [10**30], ""),
        of("too many prompts", "at most", ["a"] * 10_000),
        of("prompt too long", "tokens", long),
        _completion(
            model, "prompt and answer too long", "ask for at most", "prompt",
            prompt=[1] * (max_len - 1), max_tokens=2,
        ),
    ]  # fmt: skip


def _numbers(model: str, max_tokens: int) -> list[Malformed]:
    def of(field: str, value: object, reported: str) -> Malformed:
        return _completion(model, f"{field} {value!r}", reported, field, **{field: value})

    return [
        of("max_tokens", 0, "from 1"),
        of("max_tokens", -1, "from 1"),
        of("max_tokens", max_tokens + 1, f"to {max_tokens}"),
        of("max_tokens", 1.5, "whole number"),
        of("max_tokens", "16", "whole number"),
        of("max_tokens", YES, "whole number"),
        of("temperature", -0.1, "0 to 2"),
        of("temperature", 2.1, "0 to 2"),
        of("temperature", "hot", "a number"),
        of("top_p", 0, "above 0"),
        of("top_p", 1.1, "at most 1"),
        of("seed", 2**63, "64 bits"),
        of("seed", "seven", "whole number"),
        of("n", 0, "from 1"),
        of("n", 129, "to 128"),
        of("n", YES, "whole number"),
        of("top_k", -2, "from 1"),
        of("top_k", 1.5, "whole number"),
        of("min_p", 1.1, "from 0 to 1"),
        of("min_p", "low", "a number"),
        of("presence_penalty", 2.5, "from -2 to 2"),
        of("frequency_penalty", -2.5, "from -2 to 2"),
        of("repetition_penalty", 0, "above 0"),
        of("logprobs", -1, "from 0"),
        of("logprobs", 6, "from 0 to 5"),
        of("logprobs", "all", "whole number"),
        of("prompt_logprobs", -1, "from 0"),
        of("prompt_logprobs", 21, "from 0 to 20"),
        of("prompt_logprobs", YES, "whole number"),
    ]


def _texts(model: str) -> list[Malformed]:
    def of(name: str, reported: str, field: str, value: object) -> Malformed:
        return _completion(model, name, reported, field, **{field: value})

    return [
        of("too many stops", "at most 4", "stop", ["a", "b", "c", "d", "e"]),
        of("empty stop", "1 to", "stop", ""),
        of("endless stop", "1 to", "stop", "a" * 1000),
        of("stop is a number", "stop", "stop", 7),
        of("empty salt", "1 to", "cache_salt", ""),
        of("salt is a number", "a string", "cache_salt", 7),
        of("stream is a text", "true or false", "stream", "yes"),
        of("stream_options without stream", "unless stream", "stream_options", {}),
        _completion(
            model, "unknown stream option", "no field", "stream_options.usage",
            stream=True, stream_options={"usage": True},
        ),
        of("unknown field", "no field", "max_token", 7),
        _completion(
            model, "prompt_logprobs in a stream", "absent in a stream", "prompt_logprobs",
            stream=True, prompt_logprobs=1,
        ),
        _completion(
            model, "max_tokens below 0 with echo", "from 0", "max_tokens", echo=True, max_tokens=-1
        ),
        of("experts that nobody records", "false", "return_routed_experts", YES),
    ]  # fmt: skip


def _unsupported(model: str) -> list[Malformed]:
    def completion(field: str, value: object) -> Malformed:
        return _completion(model, f"{field} {value!r}", "not supported", field, **{field: value})

    def chat(field: str, value: object) -> Malformed:
        name = f"{field} {str(value)[:25]} in a chat"
        return _chat(model, name, "not supported", field, **{field: value})

    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}
    return [
        completion("best_of", 2),
        completion("suffix", "end"),
        completion("min_tokens", 5),
        completion("response_format", {"type": "json_object"}),
        completion("structured_outputs", {"choice": ["a", "b"]}),
        chat("tool_choice", "required"),
        chat("functions", [{"name": "f"}]),
        chat("response_format", {"type": "json_object"}),
        chat("response_format", schema),
        chat("modalities", ["audio"]),
        chat("store", YES),
        chat("reasoning_effort", "high"),
    ]


def _unable(model: str) -> list[Malformed]:
    """Return what a model refuses that has one next token, and a chat without a template."""

    def of(field: str, value: object, reported: str) -> Malformed:
        return _completion(model, f"{field} {value!r}", reported, field, **{field: value})

    tool = {"type": "function", "function": {"name": "f"}}
    return [
        of("temperature", 1, "greedily only"),
        of("presence_penalty", 0.5, "one next token"),
        of("frequency_penalty", "high", "a number"),
        of("repetition_penalty", 1.5, "one next token"),
        of("logit_bias", {"1": 5}, "one next token"),
        of("logit_bias", {"one": 5}, "token ids from 0"),
        of("logit_bias", {"99999999": 5}, "token ids from 0"),
        of("logit_bias", {"1": 101}, "from -100 to 100"),
        of("stop_token_ids", [-1], "a token id from 0")._replace(param="stop_token_ids[0]"),
        of("stop_token_ids", 7, "an array"),
        _chat(model, "tools", "shows no tools", "tools", tools=[tool]),
        _chat(model, "tools are no objects", "", "tools[0]", tools=["f"]),
        _chat(
            model, "unknown variable of a template", "variables of", "chat_template_kwargs",
            chat_template_kwargs={"thinking": True},
        ),
    ]  # fmt: skip


def _chats(model: str) -> list[Malformed]:
    def of(name: str, reported: str, param: str | None, *messages: object) -> Malformed:
        return _chat(model, name, reported, param, messages=messages)

    user = {"role": "user", "content": "a"}
    missing = Malformed(
        "no messages", CHAT, json.dumps({"model": model}).encode(), 400, "missing", "messages"
    )
    return [
        missing,
        of("empty messages", "must not be empty", "messages"),
        _chat(model, "messages is a text", "an array", "messages", messages="a turn"),
        of("a message is a text", "", "messages[0]", "a turn"),
        of("no role", "missing", "messages[0].role", {"content": "a"}),
        of("no content", "missing", "messages[0].content", {"role": "user"}),
        of("unknown role", "role", "messages[1].role", user, {"role": "boss", "content": "a"}),
        of("endless role", "role", "messages[0].role", {"role": "a" * 5000, "content": "a"}),
        of("role tool", "role", "messages[0].role", {"role": "tool", "content": "a"}),
        of("content is a number", "content", "messages[0].content", user | {"content": 7}),
        of("empty content", "not be empty", "messages[0].content", user | {"content": []}),
        of("a name", "not supported", "messages[0].name", user | {"name": "Bo"}),
        of("unknown field of a message", "no field", "messages[0].mood", user | {"mood": 1}),
        _chat(
            model, "max_tokens twice", "absent", "max_tokens",
            max_tokens=2, max_completion_tokens=2,
        ),
        _chat(model, "top_logprobs alone", "logprobs is true", "top_logprobs", top_logprobs=2),
        _chat(
            model, "too many top_logprobs", "from 0", "top_logprobs", logprobs=True, top_logprobs=21
        ),
        _chat(model, "logprobs is a number", "true or false", "logprobs", logprobs=2),
    ]  # fmt: skip


def _images(model: str) -> list[Malformed]:
    def of(name: str, reported: str, part: object, field: str = ".image_url.url") -> Malformed:
        messages = [{"role": "user", "content": [part]}]
        param = f"messages[0].content[0]{field}"
        return _chat(model, name, reported, param, messages=messages)

    def image(url: str) -> dict[str, object]:
        return {"type": "image_url", "image_url": {"url": url}}

    audio = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    return [
        of("image from the network", "nothing is fetched", image("https://example.com/a.png")),
        of("image from a file", "nothing is fetched", image("file:///etc/hosts")),
        of("not base64", "not base64", image("data:image/png;base64,####")),
        of("base64 without its end", "not base64", image("data:image/png;base64,iVBORw0")),
        of("unknown type of image", "image/tiff", image(data_url(b"II*\0", "image/tiff"))),
        of("a text that says it is an image", "no image/png", image(data_url(b"hello"))),
        of("an empty image", "no image/png", image(data_url(b""))),
        of("detail of an image", "", {"type": "image_url", "image_url": {
            "url": data_url(PNG), "detail": "high"}}, ".image_url.detail"),
        of("audio", "", audio, ".type"),
        of("a part of no type", "missing", {"text": "a"}, ".type"),
    ]  # fmt: skip
