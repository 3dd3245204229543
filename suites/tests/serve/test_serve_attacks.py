"""A server under attack: connections, half requests, clients that do not read, no descriptors."""

from __future__ import annotations

import http.client
import logging
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from kvproof.reference.server import quiet_log
from kvproof.reference.server.connections import OWN_DESCRIPTORS, most_connections
from kvproof.suites.tests.lab.stress.http.process import Server, serving
from kvproof.suites.tests.patience import LONG, until
from kvproof.suites.tests.serve.serve_kit import SMALL, completion

LOG_LIMIT = 100_000
"""Bytes of a minute."""
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


def connected(server: Server, sent: bytes = b"") -> socket.socket:
    made = socket.create_connection((server.host, server.port), timeout=LONG)
    made.sendall(sent)
    return made


def is_healthy(server: Server) -> bool:
    try:
        return server.send("GET", "/health").status == 200
    except ConnectionError:
        return False  # turned away


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0)
    try:
        while data := connection.recv(1 << 16):
            assert data
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def test_more_connections_than_allowed_are_answered_and_closed() -> None:
    with serving(*SMALL, "--max-connections", "4") as server, ExitStack() as held:
        for _ in range(4):
            held.enter_context(connected(server))
        with connected(server) as one_more:
            assert one_more.recv(100).startswith(b"HTTP/1.1 503 ")
        held.close()
        until(lambda: is_healthy(server))
        assert completion(server)["choices"]
        assert server.end() == 0
        assert server.errors().count("connections are turned away") == 1


@pytest.mark.parametrize(
    ("half", "least"),
    [
        (b"", 0.4),
        (b"GET /health HT", 0.4),
        (HEAD + b"Content-Length: 1000\r\n\r\n{", 0.4),
        (b"\r\n" * 3, 0.0),  # no request can begin like this
    ],
    ids=["nothing", "half a line", "half a body", "empty lines"],
)
def test_a_half_request_has_a_time_limit(half: bytes, least: float) -> None:
    with serving(*SMALL, "--request-timeout", "0.5") as server:
        began = time.monotonic()
        with connected(server, half) as attacker:
            until(lambda: is_closed(attacker))
        assert time.monotonic() - began > least, "too early"
        assert server.send("GET", "/health").status == 200


def drip(connection: socket.socket) -> None:
    """Send a head that is never whole, for four minutes."""
    for byte in HEAD + b"X: " + b"x" * 5000:
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


def test_a_request_byte_by_byte_has_one_time_limit() -> None:
    with (
        serving(*SMALL, "--request-timeout", "1") as server,
        connected(server) as attacker,
        pytest.raises(ConnectionError),
    ):
        drip(attacker)


def test_a_half_request_after_a_whole_one_has_a_time_limit() -> None:
    with serving(*SMALL, "--request-timeout", "0.5") as server:
        whole = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
        with connected(server, whole + b"GET /hea") as attacker:
            assert attacker.recv(100).startswith(b"HTTP/1.1 200 ")
            until(lambda: is_closed(attacker))


def test_a_client_that_does_not_read_has_a_time_limit() -> None:
    with serving(*SMALL, "--request-timeout", "0.5") as server, connected(server) as attacker:
        attacker.settimeout(0.2)
        with suppress(TimeoutError):
            attacker.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 5000)
        attacker.settimeout(LONG)
        with pytest.raises(ConnectionError):
            attacker.sendall(bytes(64 << 20))
        assert server.send("GET", "/health").status == 200


def test_a_slow_request_of_a_slow_engine_is_answered() -> None:
    with serving(*SMALL, "--request-timeout", "0.2") as server:
        assert completion(server, max_tokens=400, ignore_eos=True)["choices"]


@contextmanager
def few_descriptors(count: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_connections_leave_descriptors_to_the_process() -> None:
    with few_descriptors(300):
        assert most_connections(1024) == 300 - OWN_DESCRIPTORS
        assert most_connections(7) == 7


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="an attack of ten seconds")
def test_without_descriptors_it_says_so_once_goes_on_and_recovers() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(serving(*SMALL, descriptors=80))
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (24, 24))
        kept = http.client.HTTPConnection(server.host, server.port, timeout=LONG)
        stack.callback(kept.close)
        kept.connect()
        with ExitStack() as held:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                for _ in range(50):
                    held.enter_context(connected(server))
                kept.request("GET", "/health")
                assert kept.getresponse().read().startswith(b'{"status":"ok"')
                held.pop_all().close()
                for _ in range(20):
                    held.enter_context(connected(server))
        until(lambda: is_healthy(server))
        assert server.end() == 0
        log = server.errors()
    assert 1 <= log.count("turned away") <= 6, log
    assert len(log) < LOG_LIMIT / 6
    assert "Traceback" not in log


def test_a_flood_of_malformed_requests_does_not_fill_the_log() -> None:
    with serving(*SMALL) as server:
        for _ in range(300):
            with connected(server, b"\x00 nonsense\r\n\r\n") as attacker:
                attacker.recv(100)
        assert server.end() == 0
        log = server.errors()
    assert 1 <= log.count("Invalid HTTP request") <= quiet_log.MOST
    assert "left out" in log


def test_other_messages_are_written_and_the_same_ones_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = quiet_log.FewOfAKind()

    def passed(text: str) -> int:
        made = (logging.LogRecord("a", 30, "p", 1, text, (), None) for _ in range(20))
        return sum(few.filter(each) for each in made)

    assert (passed("one"), passed("two"), passed("one")) == (5, 5, 0)
    monkeypatch.setattr(quiet_log, "WINDOW", -1.0)
    assert passed("one") == 20
