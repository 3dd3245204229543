"""Requests move between two `kvproof serve` processes; their clients notice nothing (C5)."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from kvproof.reference.engine.request_queue import Prompt
from kvproof.reference.model.interface import Content
from kvproof.reference.server.language.language import SamplingOptions
from kvproof.reference.server.migration import TYPE, Travelling
from kvproof.suites.tests.lab.stress.http.process import Reply, Server, serving

KEY = "between-servers"
OPTIONS = (
    "--model", "symbolic", "--block-size", "4", "--max-model-len", "4096", "--max-tokens", "4000",
)  # fmt: skip
ADMIN = os.environ | {"KVPROOF_ADMIN_API_KEY": KEY}
LONG = 3000
"""Tokens of an answer that is under way for long enough to move."""
HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}


@contextmanager
def two(*of_second: str) -> Iterator[tuple[Server, Server]]:
    with (
        serving(*OPTIONS, environment=ADMIN) as first,
        serving(*OPTIONS, *of_second, environment=ADMIN) as second,
    ):
        yield first, second


def stream(server: Server, prompt: str, **fields: Any) -> Reply:
    body = {"model": "symbolic", "prompt": prompt, "max_tokens": LONG, "ignore_eos": True}
    return server.send("POST", "/v1/completions", body | {"return_token_ids": True} | fields)


def move(server: Server, to: str) -> Any:
    reply = server.send("POST", "/admin/move", {"to": to}, headers=HEADERS)
    assert reply.status == 200, reply
    return reply.json


def until_running(server: Server, count: int) -> None:
    while server.send("GET", "/health").json["running"] < count:
        pass


def tokens(reply: Reply) -> list[int]:
    found: list[int] = reply.json["choices"][0]["token_ids"]
    return found


def generated(server: Server) -> float:
    return server.metrics()['kvproof_tokens_total{kind="generated"}']


@pytest.mark.slow(reason="starts processes and waits for them")
def test_answers_go_on_where_their_requests_moved() -> None:
    prompts = ["once upon a time", "there was a server"]
    with two() as (first, second), ThreadPoolExecutor() as clients:
        due = [tokens(stream(second, prompt)) for prompt in prompts]
        before = generated(second)
        answers = [clients.submit(stream, first, prompt) for prompt in prompts]
        until_running(first, 2)
        reported = move(first, second.url)
        assert (len(reported["moved"]), reported["stayed"]) == (2, {})
        assert first.send("GET", "/health").json["running"] == 0
        assert [tokens(answer.result()) for answer in answers] == due
        assert 0 < generated(second) - before < 2 * LONG
        usage = answers[0].result().json["usage"]
        assert usage["completion_tokens"] == LONG
        for server in (first, second):
            blocks = server.metrics()['kvproof_blocks{owner="held"}']
            assert (server.end(), blocks) == (0, 0)
            assert server.errors() == ""


@pytest.mark.slow(reason="two servers, and an answer long enough to move")
def test_a_client_that_leaves_cancels_its_request_on_the_other_server() -> None:
    with two() as (first, second):
        body = {"model": "symbolic", "prompt": "gone", "max_tokens": LONG, "stream": True}
        data = json.dumps(body | {"ignore_eos": True}).encode()
        client = socket.create_connection((first.host, first.port))
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n"
        client.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + data)
        until_running(first, 1)
        assert len(move(first, second.url)["moved"]) == 1
        client.close()
        while second.send("GET", "/health").json["running"]:
            pass
        assert generated(second) < LONG


@pytest.mark.slow(reason="two servers, and an answer long enough to move")
@pytest.mark.parametrize("lost", ["refused", "killed", "absent"])
def test_a_request_that_the_other_server_loses_ends_here(lost: str) -> None:
    room = ("--num-blocks", "9") if lost == "refused" else ()
    with two(*room) as (first, second), ThreadPoolExecutor() as clients:
        due = tokens(stream(first, "a prompt"))
        if lost == "absent":
            assert second.end() == 0
        answer = clients.submit(stream, first, "a prompt")
        until_running(first, 1)
        reported = move(first, second.url)
        if lost == "killed":
            assert len(reported["moved"]) == 1
            second.process.kill()
        else:
            (reason,) = reported["stayed"].values()
            assert ("blocks" if lost == "refused" else "refused") in reason
        assert tokens(answer.result()) == due
        assert first.metrics()['kvproof_requests_total{outcome="completed"}'] == 2


@pytest.mark.slow(reason="two servers, and an answer long enough to move")
def test_requests_with_more_than_their_tokens_stay_and_end() -> None:
    experts = "--return-routed-experts"
    with serving(*OPTIONS, experts, environment=ADMIN) as server, ThreadPoolExecutor() as clients:
        answer = clients.submit(stream, server, "a prompt")
        until_running(server, 1)
        reported = move(server, "http://127.0.0.1:1")
        assert [*reported["stayed"].values()] == ["this server records experts"]
        assert len(tokens(answer.result())) == LONG


PROMPT = Prompt("r", (1, 2, 3), 8)
RIGHT = Travelling("symbolic", SamplingOptions(), 0, PROMPT, (1, 2, 3), 0, (), 0, None)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "is no request of another server"),
        (b"\x93\x01\x02\x03", 400, "is no request of another server"),
        ({"model": "other"}, 404, "is not served here"),
        ({"tokens": (1, 2, 4)}, 400, "are not its prompt"),
        ({"tokens": (1, 2, 3, *range(8))}, 400, "are not its prompt"),
        ({"drafts": (-1,)}, 400, "are not all from 0"),
        ({"computed": 2}, 400, "before the last one, with content"),
        ({"computed": 3, "content": Content([], b"")}, 400, "before the last one"),
        ({"prompt": Prompt("r", (1, 2, 3), 9999)}, 400, "within 4096 tokens"),
        ({"computed": 2, "content": Content([b"xy"], b"")}, 500, "has 2 bytes, expected 16"),
    ],
)
def test_what_is_no_request_is_refused_and_leaves_nothing(
    one: Server, body: Any, status: int, message: str
) -> None:
    changed = msgspec.structs.replace(RIGHT, **body) if isinstance(body, dict) else None
    data = msgspec.msgpack.encode(changed) if changed else body
    reply = one.send("POST", "/admin/requests", data, headers=HEADERS | {"content-type": TYPE})
    assert (reply.status, message in reply.json["error"]["message"]) == (status, True), reply
    assert one.metrics()['kvproof_blocks{owner="held"}'] == 0


@pytest.fixture(scope="module")
def one() -> Iterator[Server]:
    with serving(*OPTIONS, environment=ADMIN) as server:
        yield server


@pytest.mark.parametrize(
    ("body", "key", "status", "message"),
    [
        ({"to": "http://127.0.0.1:8001"}, "wrong", 401, "the API key is wrong"),
        ({"to": "not a url"}, KEY, 400, "to 'not a url' must be the URL of a server"),
        ({"to": "http://x:99999"}, KEY, 400, "must be the URL of a server"),
        ({"to": "http://x/v1"}, KEY, 400, "must be the URL of a server"),
        ({"two": 1}, KEY, 400, 'send {"to": "http://127.0.0.1:8001"}'),
    ],
)
def test_a_wrong_command_is_refused(
    one: Server, body: Any, key: str, status: int, message: str
) -> None:
    headers = HEADERS | {"authorization": f"Bearer {key}"}
    reply = one.send("POST", "/admin/move", body, headers=headers)
    assert reply.status == status
    assert message in reply.json["error"]["message"]


def test_without_a_key_there_is_no_admin_path() -> None:
    with serving("--model", "symbolic") as server:
        for path in ("/admin/move", "/admin/requests"):
            assert server.send("POST", path, {}, headers=HEADERS).status == 404
