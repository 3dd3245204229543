"""`n`, `stop_token_ids` and fields that change nothing, in completions and chats."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from kvproof.suites.tests.lab.stress.http.process import Server, serving
from kvproof.suites.tests.patience import LONG, until
from kvproof.suites.tests.serve.serve_kit import SMALL, chat, completion, events

WISH: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "return_token_ids": True}
PROMPTS = ["one prompt of the two", "the other one"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(*SMALL) as running:
        yield running
        figures = running.metrics()
        assert figures['kvproof_blocks{owner="held"}'] == figures["kvproof_places_taken"] == 0
        assert running.end() == 0
        assert running.errors() == ""


def test_n_choices_follow_each_prompt(server: Server) -> None:
    alone = [completion(server, prompt=each, **WISH)["choices"][0] for each in PROMPTS]
    found = completion(server, prompt=PROMPTS, n=3, echo=True, logprobs=1, **WISH)
    for place, choice in enumerate(found["choices"]):
        assert choice["index"] == place
        assert choice["token_ids"] == alone[place // 3]["token_ids"]
        assert choice["prompt_token_ids"] == alone[place // 3]["prompt_token_ids"]
        assert choice["text"] == PROMPTS[place // 3] + alone[place // 3]["text"]
        assert len(choice["logprobs"]["tokens"]) == len(PROMPTS[place // 3]) + 40
    assert found["usage"]["prompt_tokens"] == sum(map(len, PROMPTS))
    assert found["usage"]["completion_tokens"] == 6 * 40


def test_n_choices_are_streamed(server: Server) -> None:
    whole = chat(server, "good morning", n=2, **WISH).json["choices"]
    found = events(chat(server, "good morning", n=2, stream=True, **WISH))
    for index in range(2):
        deltas = [each["choices"][0] for each in found if each["choices"][0]["index"] == index]
        assert deltas[0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(each["delta"].get("content", "") for each in deltas)
        assert text == whole[index]["message"]["content"]


def test_cached_tokens_count_a_prompt_once(server: Server) -> None:
    prompt = "a prompt that comes back in many choices"
    completion(server, prompt=prompt, max_tokens=1)
    usage = completion(server, prompt=prompt, max_tokens=1, n=8)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 36


def test_more_choices_than_places_are_refused(server: Server) -> None:
    body = {"model": "symbolic", "prompt": PROMPTS, "n": 17}
    reply = server.send("POST", "/v1/completions", body)
    assert (reply.status, reply.json["error"]["message"]) == (
        400,
        "34 answers, but all places are 32",
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_token_ends_the_answer_and_belongs_to_it(server: Server, stream: bool) -> None:  # noqa: FBT001 - a parameter
    whole = completion(server, prompt="stop tokens", **WISH)["choices"][0]
    stop = next(token for token in whole["token_ids"][20:] if token)
    place = whole["token_ids"].index(stop) + 1
    wish = {"model": "symbolic", "prompt": "stop tokens", "stop_token_ids": [200, stop]} | WISH
    reply = server.send("POST", "/v1/completions", wish | {"stream": stream})
    choices = [each["choices"][0] for each in events(reply)] if stream else [*reply.json["choices"]]
    assert [token for each in choices for token in each["token_ids"]] == whole["token_ids"][:place]
    letters = sum(token != 0 for token in whole["token_ids"][:place])
    assert "".join(each["text"] for each in choices) == whole["text"][:letters]
    assert choices[-1]["finish_reason"] == "stop"


def test_a_stop_string_before_the_stop_token_wins(server: Server) -> None:
    whole = completion(server, prompt="both", **WISH)["choices"][0]
    text, ids = whole["text"], whole["token_ids"]
    place = next(n for n in range(10, 30) if ids[n] and ids[n] not in ids[:n])
    letter = sum(map(bool, ids[:place]))
    stop = text[letter - 5 : letter + 1]  # its last letter is the text of the token
    cut = completion(server, prompt="both", stop=stop, stop_token_ids=[ids[place]], **WISH)
    (choice,) = cut["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text[: letter - 5], "stop")
    assert choice["token_ids"] == ids[: place + 1]


def test_fields_of_sampling_change_nothing_without_it(server: Server) -> None:
    plain = completion(server, max_tokens=9)["choices"]
    neutral = {
        "top_k": 5, "min_p": 0.5, "top_p": 0.5, "presence_penalty": 0, "frequency_penalty": 0.0,
        "repetition_penalty": 1, "logit_bias": {}, "n": 1, "stop_token_ids": [], "seed": 7,
        "response_format": {"type": "text"},
    }  # fmt: skip
    assert completion(server, max_tokens=9, **neutral)["choices"] == plain
    off = {"top_k": -1, "tools": [], "chat_template_kwargs": {}, "logit_bias": None, "n": None}
    assert chat(server, "plain", max_tokens=2, **off).status == 200


CLIENTS = 64


def _leave_in_the_middle(server: Server, seed: int) -> str:
    """Ask for four answers; three of four clients leave after some tokens."""
    body = {"model": "symbolic", "prompt": f"client {seed % 7} of many", "n": 4, "stream": True}
    body |= {"max_tokens": 200, "ignore_eos": True}
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(server.url).port, timeout=LONG)
    with closing(connection):
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        reply = connection.getresponse()
        if reply.status != 200 or seed % 4:
            reply.read(500 * (seed % 4))
            return "left" if reply.status == 200 else str(reply.status)
        return "whole" if reply.read().endswith(b"data: [DONE]\n\n") else "cut"


@pytest.mark.slow(reason="64 clients with four answers each")
def test_blocks_are_free_after_many_clients_have_left() -> None:
    options = ("--model", "symbolic", "--block-size", "4", "--num-blocks", "2001",
               "--max-model-len", "512", "--max-requests", "16")  # fmt: skip
    with serving(*options) as running, ThreadPoolExecutor(CLIENTS) as clients:
        ends = Counter(clients.map(partial(_leave_in_the_middle, running), range(CLIENTS)))
        assert ends == {"whole": 16, "left": 48}
        until(lambda: not running.metrics()["kvproof_places_taken"])
        figures = running.metrics()
        assert figures["kvproof_places_taken"] == figures["kvproof_requests_running"] == 0
        assert figures['kvproof_blocks{owner="held"}'] == 0
        assert figures['kvproof_requests_total{outcome="cancelled"}'] > 0
        assert completion(running, n=4)["usage"]["completion_tokens"] > 0
        assert running.end() == 0
        assert running.errors() == ""
