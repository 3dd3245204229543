"""The real `openai` client and curl against the server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from kvproof.suites.tests.lab.stress.http.malformed import PNG, data_url
from kvproof.suites.tests.lab.stress.http.process import Server, serving
from kvproof.suites.tests.serve.serve_kit import SMALL


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(*SMALL, environment=os.environ | {"KVPROOF_API_KEY": "s3cret"}) as running:
        yield running
        assert running.end() == 0
        assert running.errors() == ""


@pytest.fixture(scope="module")
def openai() -> Any:
    return pytest.importorskip("openai", reason="the openai client is not installed")


@pytest.fixture
def client(openai: Any, server: Server) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="s3cret", max_retries=0) as made:
        yield made


def test_openai_lists_models(client: Any) -> None:
    assert [each.id for each in client.models.list()] == ["symbolic"]
    assert client.models.retrieve("symbolic").id == "symbolic"


def test_openai_completes(client: Any) -> None:
    wish = {"model": "symbolic", "prompt": "hello from the client", "max_tokens": 20}
    answer = client.completions.create(**wish, logprobs=2)
    again = client.completions.create(**wish)
    assert again.choices[0].text == answer.choices[0].text
    first, second = answer.choices[0].logprobs.top_logprobs[0].values()
    assert answer.choices[0].logprobs.token_logprobs[0] == first > second
    assert again.usage.prompt_tokens_details.cached_tokens == 20
    streamed = client.completions.create(**wish, stream=True)
    assert "".join(each.choices[0].text for each in streamed) == answer.choices[0].text


def test_openai_chats(client: Any) -> None:
    wish: dict[str, Any] = {
        "model": "symbolic",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [
                {"type": "text", "text": "what is this?"},
                {"type": "image_url", "image_url": {"url": data_url(PNG)}},
            ]},
        ],
        "max_completion_tokens": 20,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
    }  # fmt: skip
    answer = client.chat.completions.create(**wish)
    assert answer.choices[0].message.role == "assistant"
    chosen = answer.choices[0].logprobs.content[0]
    assert chosen.logprob == chosen.top_logprobs[0].logprob > chosen.top_logprobs[1].logprob
    chunks = list(
        client.chat.completions.create(**wish, stream=True, stream_options={"include_usage": True})
    )
    reported = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    assert reported == answer.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0


def test_openai_s_helper_for_streams_understands_them(client: Any) -> None:
    with client.chat.completions.stream(
        model="symbolic", messages=[{"role": "user", "content": "hello"}], max_tokens=400
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()  # which refuses answers that were cut
    assert final.choices[0].finish_reason == "stop"


def test_openai_reads_the_errors(client: Any, openai: Any, server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="best_of 2 is not supported") as refused:
        client.completions.create(model="symbolic", prompt="a", best_of=2)
    assert (refused.value.param, refused.value.code) == ("best_of", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError, match="gpt"):
        client.completions.create(model="gpt", prompt="a")
    with pytest.raises(openai.BadRequestError, match="greedily"):
        client.completions.create(model="symbolic", prompt="a", temperature=1)
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="other", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_openai_leaves_a_stream_early(client: Any, server: Server) -> None:
    with client.completions.create(
        model="symbolic",
        prompt="left",
        max_tokens=400,
        stream=True,
        extra_body={"ignore_eos": True},
    ) as stream:
        next(iter(stream))
    assert client.completions.create(model="symbolic", prompt="a").choices
    assert server.metrics()['kvproof_requests_total{outcome="failed"}'] == 0


def curl(server: Server, path: str, *arguments: str) -> str:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command = ["curl", "-sS", "--max-time", "30", f"{server.url}{path}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


KEY = ("-H", "Authorization: Bearer s3cret")


def test_curl_completes(server: Server) -> None:
    body = json.dumps({"model": "symbolic", "prompt": "from a shell", "max_tokens": 3})
    answer = json.loads(curl(server, "/v1/completions", *KEY, "--json", body))
    assert answer["usage"]["prompt_tokens"] == len("from a shell")


def test_curl_streams(server: Server) -> None:
    body = json.dumps(
        {"model": "symbolic", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    )
    lines = curl(server, "/v1/chat/completions", *KEY, "-N", "--json", body).split("\n\n")
    assert lines[0].startswith('data: {"id":"chatcmpl-')
    assert lines[-2] == "data: [DONE]"


def test_curl_s_usual_mistake_is_explained(server: Server) -> None:
    answer = json.loads(curl(server, "/v1/completions", *KEY, "-d", '{"model": "symbolic"}'))
    assert "application/json" in answer["error"]["message"]


def test_curl_reads_health_and_metrics(server: Server) -> None:
    assert json.loads(curl(server, "/health"))["status"] == "ok"
    assert "kvproof_blocks{" in curl(server, "/metrics")
