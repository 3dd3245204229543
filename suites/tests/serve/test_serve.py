"""`kvproof serve` answers as OpenAI's interface says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from kvproof.reference.core.validation import ConfigError
from kvproof.reference.server.options import ServerConfig
from kvproof.reference.server.running import listen
from kvproof.suites.tests.lab.stress.http.malformed import PNG, data_url
from kvproof.suites.tests.lab.stress.http.process import Server, serving
from kvproof.suites.tests.serve.serve_kit import SMALL, chat, completion, events


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(*SMALL) as running:
        yield running
        assert running.end() == 0
        assert running.errors() == ""


def test_a_completion_is_whole(server: Server) -> None:
    answer = completion(server, max_tokens=12, ignore_eos=True)
    assert answer["object"] == "text_completion"
    assert answer["model"] == "symbolic"
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["usage"]["prompt_tokens"] == len("once upon a time")
    assert answer["usage"]["total_tokens"] == 12 + len("once upon a time")


def test_a_completion_has_16_tokens_unless_told_otherwise(server: Server) -> None:
    answer = completion(server, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 16


def test_the_model_ends_an_answer(server: Server) -> None:
    answer = completion(server, max_tokens=400, return_token_ids=True)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["token_ids"][-1] == 0
    assert len(choice["text"]) == len(choice["token_ids"]) - 1


def test_a_stream_tells_the_same(server: Server) -> None:
    wish = {"model": "symbolic", "prompt": "streams", "max_tokens": 40, "ignore_eos": True}
    whole = server.complete(**wish)
    reported = events(server.send("POST", "/v1/completions", wish | {"stream": True}))
    assert "".join(each["choices"][0]["text"] for each in reported) == whole["choices"][0]["text"]
    assert [each["choices"][0]["finish_reason"] for each in reported[:-1]] == [None] * (
        len(reported) - 1
    )
    assert reported[-1]["choices"][0]["finish_reason"] == "length"
    assert len({each["id"] for each in reported}) == 1
    assert "usage" not in reported[0]


def test_a_stream_ends_with_its_usage_on_request(server: Server) -> None:
    wish = {"model": "symbolic", "prompt": "usage", "max_tokens": 7, "ignore_eos": True}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    reported = events(server.send("POST", "/v1/completions", wish | options))
    assert all(each["usage"] is None for each in reported[:-1])
    assert reported[-1]["choices"] == []
    assert reported[-1]["usage"]["completion_tokens"] == 7


def test_a_chat_is_whole_or_streamed(server: Server) -> None:
    whole = chat(server, "good morning", max_completion_tokens=9, ignore_eos=True).json
    message = whole["choices"][0]["message"]
    assert (whole["object"], message["role"]) == ("chat.completion", "assistant")
    options = {"max_tokens": 9, "ignore_eos": True, "stream": True}
    reported = events(chat(server, "good morning", **options))
    deltas = [each["choices"][0]["delta"] for each in reported]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(each.get("content", "") for each in deltas) == message["content"]
    assert {each["object"] for each in reported} == {"chat.completion.chunk"}


def test_content_in_parts_is_the_same_chat(server: Server) -> None:
    whole = chat(server, "good morning", max_tokens=9).json
    parts = [{"type": "text", "text": "good "}, {"type": "text", "text": "morning"}]
    assert chat(server, parts, max_tokens=9).json["choices"] == whole["choices"]


def test_the_cache_is_told_truly(server: Server) -> None:
    prompt = "a prompt that nobody else sends, of some length"
    first = completion(server, prompt=prompt, max_tokens=1)["usage"]
    again = completion(server, prompt=prompt, max_tokens=1)["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    # the last token is always computed, and blocks have four
    cached = (len(prompt) - 1) // 4 * 4
    assert again["prompt_tokens_details"]["cached_tokens"] == cached


def test_the_cache_s_own_counters_agree(server: Server) -> None:
    before = server.metrics()
    for _ in range(2):
        completion(server, prompt="counted by both, server and cache", max_tokens=3)
    after = server.metrics()
    for name in ('kvproof_hit_tokens_total{request="new"}', 'kvproof_tokens_total{kind="cached"}'):
        assert after[name] - before.get(name, 0) == 32, name


def test_a_salt_separates(server: Server) -> None:
    wish = {"prompt": "the same prompt for two tenants", "max_tokens": 2}
    completion(server, **wish, cache_salt="red")
    other = completion(server, **wish, cache_salt="blue")["usage"]
    same = completion(server, **wish, cache_salt="red")["usage"]
    assert other["prompt_tokens_details"]["cached_tokens"] == 0
    assert same["prompt_tokens_details"]["cached_tokens"] == 28


def test_several_prompts_are_answered_in_one_request(server: Server) -> None:
    prompts = ["the first", "the second one", "a third"]
    alone = [completion(server, prompt=each, max_tokens=8)["choices"][0] for each in prompts]
    together = completion(server, prompt=prompts, max_tokens=8)
    assert [each["index"] for each in together["choices"]] == [0, 1, 2]
    assert [each["text"] for each in together["choices"]] == [each["text"] for each in alone]
    assert together["usage"]["prompt_tokens"] == sum(map(len, prompts))
    wish = {"model": "symbolic", "prompt": prompts, "max_tokens": 8, "stream": True}
    texts = ["", "", ""]
    for event in events(server.send("POST", "/v1/completions", wish)):
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == [each["text"] for each in alone]


def test_token_ids_are_the_text_that_they_stand_for(server: Server) -> None:
    text = completion(server, prompt="ids or text", return_token_ids=True)
    ids = text["choices"][0]["prompt_token_ids"]
    for prompt in (ids, [ids]):
        assert completion(server, prompt=prompt)["choices"][0]["text"] == text["choices"][0]["text"]


def test_an_echo_begins_with_the_prompt(server: Server) -> None:
    plain = completion(server, prompt="ünïcode")["choices"][0]
    reported = completion(server, prompt="ünïcode", echo=True)["choices"][0]
    assert reported["text"] == "ünïcode" + plain["text"]
    ids = completion(server, prompt="ünïcode", return_token_ids=True)["choices"][0]
    again = completion(server, prompt=ids["prompt_token_ids"], echo=True)["choices"][0]
    assert again["text"] == reported["text"]


@pytest.mark.parametrize("length", [1, 3])
def test_a_stop_string_is_not_told(server: Server, length: int) -> None:
    wish = {"prompt": "stop", "max_tokens": 60, "ignore_eos": True}
    whole = completion(server, **wish)["choices"][0]["text"]
    stop = whole[20 : 20 + length]
    reported = completion(server, **wish, stop=["never seen", stop], return_token_ids=True)
    (choice,) = reported["choices"]
    place = whole.index(stop)
    assert (choice["text"], choice["finish_reason"]) == (whole[:place], "stop")
    assert reported["usage"]["completion_tokens"] == len(choice["token_ids"]) < 60


def test_logprobs_are_those_of_the_tokens_told(server: Server) -> None:
    choice = completion(server, max_tokens=5, ignore_eos=True, logprobs=2)["choices"][0]
    reported = choice["logprobs"]
    letters = [each.replace("token_id:0", "") for each in reported["tokens"]]  # an end has no bytes
    assert len(letters) == 5
    assert "".join(letters) == choice["text"]
    best = [max(each.items(), key=lambda pair: pair[1]) for each in reported["top_logprobs"]]
    assert best == [*zip(reported["tokens"], reported["token_logprobs"], strict=True)]
    assert all(-0.2 < each < 0 for each in reported["token_logprobs"])
    assert all(len(each) == 2 for each in reported["top_logprobs"])
    places = [len("".join(letters[:count])) for count in range(5)]
    assert reported["text_offset"] == places


def test_logprobs_of_a_chat_have_bytes(server: Server) -> None:
    wish = {"max_tokens": 4, "logprobs": True, "top_logprobs": 1, "ignore_eos": True}
    choice = chat(server, "bytes", **wish).json["choices"][0]
    content = choice["logprobs"]["content"]
    data = bytes(byte for each in content for byte in each["bytes"])
    assert data.decode() == choice["message"]["content"]
    assert all(each["top_logprobs"][0]["token"] == each["token"] for each in content)
    streamed = events(chat(server, "bytes", **wish, stream=True))
    pieces = [(each["choices"][0]["logprobs"] or {}).get("content", []) for each in streamed]
    assert [score for piece in pieces for score in piece] == content


def _picture(data: bytes) -> list[Any]:
    return [
        {"type": "text", "text": "what is this? "},
        {"type": "image_url", "image_url": {"url": data_url(data)}},
    ]


def test_images_are_part_of_what_is_cached(server: Server) -> None:
    first = chat(server, _picture(PNG + b"cat"), max_tokens=20, ignore_eos=True).json
    other = chat(server, _picture(PNG + b"dog"), max_tokens=20, ignore_eos=True).json
    same = chat(server, _picture(PNG + b"cat"), max_tokens=20, ignore_eos=True).json
    text = [each["choices"][0]["message"]["content"] for each in (first, other, same)]
    assert text[0] == text[2] != text[1]
    cached = [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in (other, same)]
    before = len("<user>what is this? ") // 4 * 4
    assert cached[0] == before
    assert cached[1] > before + 16


def test_limits_on_images_hold(server: Server) -> None:
    large = chat(server, _picture(PNG + bytes(4096)))
    assert (large.status, large.json["error"]["code"]) == (400, "invalid_image")
    many = chat(server, *[_picture(PNG)] * 4)
    assert many.status == 400
    assert "at most 3" in many.json["error"]["message"]


def test_neutral_values_of_unsupported_fields_are_accepted(server: Server) -> None:
    neutral = {"n": 1, "tools": None, "logit_bias": {}, "user": "u", "metadata": {"a": "b"},
               "response_format": {"type": "text"}, "presence_penalty": 0, "temperature": 0,
               "seed": 7, "top_p": 1, "stop": None, "store": False}  # fmt: skip
    assert chat(server, "plain", max_tokens=2, **neutral).status == 200


def test_models_are_listed(server: Server) -> None:
    listed = server.send("GET", "/v1/models").json["data"]
    assert [(each["id"], each["max_model_len"]) for each in listed] == [("symbolic", 512)]
    assert server.send("GET", "/v1/models/symbolic").json == listed[0]


def test_a_healthy_server_says_so(server: Server) -> None:
    health = server.send("GET", "/health")
    assert health.status == 200
    assert health.json["status"] == "ok"


def test_nothing_is_held_once_all_are_answered(server: Server) -> None:
    reported = server.metrics()
    owners = {
        name: reported[f'kvproof_blocks{{owner="{name}"}}'] for name in ("free", "held", "cached")
    }
    assert owners["held"] == 0
    assert sum(owners.values()) == 256
    assert reported["kvproof_requests_running"] == reported["kvproof_places_taken"] == 0


def test_a_longest_answer_fills_the_model(server: Server) -> None:
    prompt = "p" * 500
    wish = {"model": "symbolic", "messages": [{"role": "user", "content": prompt}]}
    assert server.send("POST", "/v1/chat/completions", wish).status == 400
    fits = chat(server, "p" * 400, ignore_eos=True).json["usage"]
    assert fits["total_tokens"] == 512


def test_experts_are_returned_on_request_hit_or_not() -> None:
    with serving(*SMALL, "--return-routed-experts") as running:
        wish = {"prompt": "experts of each token", "return_routed_experts": True, "max_tokens": 9}
        first = completion(running, **wish, ignore_eos=True)
        again = completion(running, **wish, ignore_eos=True)
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 20
        reported = first["choices"][0]["routed_experts"]
        assert again["choices"][0]["routed_experts"] == reported
        assert len(reported["rows"]) == len("experts of each token") + 9 - 1
        assert reported["missing"] == []
        stop = first["choices"][0]["text"][4]
        cut = completion(running, **wish, ignore_eos=True, stop=stop)
        count = cut["usage"]["total_tokens"] - 1
        assert cut["choices"][0]["routed_experts"]["rows"] == reported["rows"][:count]
        assert "routed_experts" not in completion(running, prompt="nobody asked")["choices"][0]


def test_keys_are_asked_for_if_one_is_set() -> None:
    with serving(*SMALL, environment=os.environ | {"KVPROOF_API_KEY": "s3cret"}) as running:
        plain = {"content-type": "application/json"}
        body = {"model": "symbolic", "prompt": "a"}
        for key, status in ((None, 401), ("Bearer no", 401), ("Bearer s3cret", 200)):
            headers = plain | ({"authorization": key} if key else {})
            reply = running.send("POST", "/v1/completions", body, headers=headers)
            assert reply.status == status
        assert running.send("GET", "/v1/models").status == 401
        assert running.send("GET", "/health").status == 200
        assert running.send("GET", "/metrics").status == 200


def test_what_is_cached_outlives_the_server_on_its_disk(tmp_path: Path) -> None:
    tiers = ("--host-tier", "1MiB", "--disk-tier", str(tmp_path), "1GiB", "--weights", "w")
    wish = {"model": "symbolic", "prompt": "x" * 100, "max_tokens": 4, "ignore_eos": True}
    found = []
    for _ in range(2):
        with serving(*SMALL, *tiers) as running:
            usage = running.complete(**wish)["usage"]
            found.append(usage["prompt_tokens_details"]["cached_tokens"])
            reported = running.metrics()
            assert running.end() == 0
    assert found == [0, 96]
    assert reported['kvproof_tier_hit_tokens_total{request="new",tier="disk"}'] == 96


def test_an_address_is_taken_before_it_is_served() -> None:
    first = listen(ServerConfig(port=0))
    with first, pytest.raises(ConfigError, match="Address already in use"):
        listen(ServerConfig(port=first.getsockname()[1]))
