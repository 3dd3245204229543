"""Back-pressure, clients that leave, and the end of a server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from kvproof.suites.tests.lab.stress.http.process import NotStarted, Server, serving
from kvproof.suites.tests.lab.stress.http.streams import stream
from kvproof.suites.tests.patience import LONG as PATIENCE
from kvproof.suites.tests.patience import until
from kvproof.suites.tests.serve.serve_kit import SMALL

LONG = {"model": "symbolic", "prompt": "long", "max_tokens": 400, "ignore_eos": True}
FEW = ("--model", "symbolic", "--max-requests", "1", "--max-waiting", "1")
BEGUN = 'kvproof_tokens_total{kind="prompt"}'
HELD = 'kvproof_blocks{owner="held"}'


def open_request(server: Server, **fields: object) -> socket.socket:
    """Send a request and leave its answer unread."""
    body = json.dumps(LONG | fields).encode()
    connection = socket.create_connection((server.host, server.port))
    head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def test_more_requests_than_places_are_turned_away() -> None:
    with serving(*FEW) as server:
        never = server.send("POST", "/v1/completions", LONG | {"prompt": ["a", "b", "c"]})
        assert never.status == 400  # there are never as many places
        held = [open_request(server, max_tokens=4000) for _ in range(2)]
        until(lambda: server.metrics()["kvproof_places_taken"] == 2)
        reply = server.send("POST", "/v1/completions", LONG)
        assert (reply.status, reply.headers["retry-after"]) == (429, "1")
        assert reply.json["error"]["code"] == "queue_full"
        assert server.metrics()["kvproof_requests_turned_away_total"] == 1
        for connection in held:
            connection.close()
        until(lambda: not server.metrics()["kvproof_places_taken"])
        assert server.send("POST", "/v1/completions", LONG).status == 200


@pytest.mark.parametrize("fields", [{}, {"stream": True}], ids=["whole", "stream"])
def test_a_client_that_leaves_frees_its_blocks_and_its_place(fields: dict[str, object]) -> None:
    with serving(*SMALL) as server:
        connections = [open_request(server, prompt=["a prompt"] * 8, **fields) for _ in range(4)]
        until(lambda: server.metrics()[HELD])
        for connection in connections:
            connection.close()
        until(lambda: not server.metrics()["kvproof_places_taken"])
        reported = server.metrics()
        assert reported[HELD] == reported["kvproof_requests_running"] == 0
        assert reported['kvproof_requests_total{outcome="cancelled"}'] > 0
        assert server.end() == 0
        assert server.errors() == ""


def test_a_client_that_leaves_inside_its_own_request_is_no_fault() -> None:
    with serving(*SMALL) as server:
        connection = socket.create_connection((server.host, server.port))
        head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        connection.close()
        assert server.send("GET", "/health").status == 200
        assert server.end() == 0
        assert server.errors() == ""


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_lets_requests_end(how: signal.Signals, code: int) -> None:
    with serving(*SMALL) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.send, "POST", "/v1/completions", LONG)
        until(lambda: server.metrics()[BEGUN])
        server.process.send_signal(how)
        assert asked.result().json["usage"]["completion_tokens"] == 400
        assert server.process.wait(PATIENCE) == code
        assert server.errors() in ("", "kvproof: interrupted\n")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((server.host, server.port))


def test_requests_that_need_longer_than_the_time_of_grace_are_told() -> None:
    many = {"prompt": ["a prompt"] * 32, "max_tokens": 400}
    with serving(*SMALL, "--grace", "0") as server:
        started = stream(server.host, server.port, LONG | many | {"stream": True}, leave_after=None)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(asyncio.run, started)
            until(lambda: server.metrics()[BEGUN])
            assert server.end() == 0
            answer = asked.result()
        assert (answer.status, answer.error) in [
            (200, "the server is shutting down"),
            (503, answer.error),
        ]
        assert server.errors() == ""


def test_a_taken_port_is_a_usage_error() -> None:
    with serving(*SMALL) as server:
        message = f"cannot listen on 127.0.0.1 port {server.port}"
        with pytest.raises(NotStarted, match=message), serving("--port", str(server.port), *SMALL):
            pass


def test_only_loopback_unless_told_otherwise() -> None:
    with serving(*SMALL) as server:
        assert server.host == "127.0.0.1"
    with serving(*SMALL, "--host", "0.0.0.0") as server:
        assert server.process.stdout
        assert "blocks" in server.process.stdout.readline()
        assert "reachable from other machines" in server.process.stdout.readline()


def test_a_key_may_come_from_the_environment() -> None:
    environment = os.environ | {"KVPROOF_API_KEY": "s3cret"}
    with serving(*SMALL, environment=environment) as server:
        assert server.send("GET", "/v1/models").status == 401
