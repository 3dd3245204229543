"""A distributed store whose server is killed, frozen, slow, full, guarded or not there."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import subprocess
import threading
import time
from dataclasses import replace

import pytest

from kvproof.reference.stores.remote_breaker import Breaker
from kvproof.reference.stores.remote_config import RemoteConfig
from kvproof.reference.stores.remote_store import RemoteUnusable, connect
from kvproof.suites.tests.cache_server.remote_kit import (
    content,
    free_port,
    host,
    key,
    link,
    name,
    needs_server,
    patient,
    put,
    read,
    serving,
)
from kvproof.suites.tests.patience import until

TIMEOUT_S = 0.3
SLACK_S = 30.0
"""Time that other work on the machine may add; keys that wait in turn take longer."""


@pytest.fixture
def server():
    with serving() as server:
        yield server


@contextlib.contextmanager
def hurried(store, *, timeout_s=TIMEOUT_S):
    """Short of patience while it cannot be answered, and only then."""
    before, store.config = store.config, replace(store.config, timeout_s=timeout_s)
    yield
    store.config = before


def until_heard(store, *numbers):
    """Ask until the server is asked again; returns what it has then."""
    found = []

    def heard():
        found[:] = [store.lookup([*map(key, numbers)])]
        return found[0] is None or not store.is_left_alone

    until(heard)
    return found[0]


@needs_server
def test_a_killed_server_is_missed_and_found_again_when_it_is_back(server, caplog):
    with host(server) as store:
        put(store, 1)
        server.kill()
        for _ in range(20):
            assert put(store, 2) == frozenset()
            assert store.lookup([key(1)]) == [False]
            assert read(store, 1) == [None]
            assert store.drop([key(1)]) == store.status().objects == 0
        assert store.is_left_alone
        assert store.counts.failed >= 3
        assert store.counts.failed + store.counts.skipped == 100
        assert len([line for line in caplog.messages if "does not answer" in line]) == 1
        server.start()
        assert until_heard(store, 1) == [False]
        assert [line for line in caplog.messages if "answers again" in line]
        put(store, 1)
        assert read(store, 1) == [content(1)]


@needs_server
def test_a_restart_between_two_calls_costs_none_of_them(server):
    with host(server) as store:
        put(store, 1)
        server.kill()
        server.start()
        assert put(store, 2) == {key(2)}
        assert store.counts.failed == 0


@needs_server
def test_a_reset_while_the_server_is_away_holds_when_it_is_back(server):
    with host(server, failures=1) as store:
        put(store, 1)
        with server.frozen(), hurried(store):
            assert store.clear() == 0
        assert until_heard(store, 1) == [False]
        assert read(store, 1) == [None]


@needs_server
def test_a_frozen_server_holds_nobody_longer_than_the_timeout(server):
    with host(server, backoff_s=60.0) as store:
        put(store, 1)
        calls = [
            lambda: read(store, *range(1, 200)),
            lambda: put(store, *range(200)),
            lambda: store.lookup([*map(key, range(5000))]),
        ]
        with server.frozen(), hurried(store):
            for call in calls:
                begin = time.monotonic()
                call()
                assert TIMEOUT_S - 0.05 < time.monotonic() - begin < TIMEOUT_S + SLACK_S
            assert (store.counts.failed, store.is_left_alone) == (3, True)
            for call in calls * 100:
                call()
            assert (store.counts.failed, store.counts.skipped) == (3, 300), "the server is asked"


@needs_server
def test_after_a_freeze_no_answer_is_taken_for_another(server):
    """The answers of calls that were given up must not be read by the next ones."""
    with host(server, failures=100) as store:
        put(store, *range(20))
        with server.frozen(), hurried(store):
            for number in range(4):
                assert read(store, number) == [None]
        assert until_heard(store, 5) == [True]
        assert read(store, *range(20)) == [content(n) for n in range(20)]
        assert store.counts.dropped == 0


@needs_server
def test_a_server_that_freezes_for_new_connections_is_reported_in_time(server):
    with server.frozen():
        begin = time.monotonic()
        with pytest.raises(RemoteUnusable, match="overloaded or stopped"):
            connect(server.url, RemoteConfig(timeout_s=TIMEOUT_S))
        assert time.monotonic() - begin < TIMEOUT_S + SLACK_S


@needs_server
def test_bytes_that_dribble_in_hold_nobody_longer_than_the_timeout(server):
    """Every wait of the socket is short; only all of them together are too long."""
    slow = threading.Event()

    def dribble(data):
        if not slow.is_set():
            yield data
            return
        for begin in range(0, len(data), 50):
            time.sleep(0.02)
            yield data[begin : begin + 50]

    with link(server, dribble) as url, host(server) as near:
        near.store({key(1): content(1, 100_000), key(2): b"small"})
        with connect(url, patient()) as far:
            assert len(read(far, 1)[0]) == 100_000
            slow.set()
            begin = time.monotonic()
            with hurried(far):
                assert read(far, 1) == [None]
            assert time.monotonic() - begin < TIMEOUT_S + SLACK_S
            assert far.counts.failed == 1


@needs_server
def test_what_came_in_time_counts(server):
    """The first batches of a read are served although the last one never comes."""
    passed = 0

    def cut(data):
        nonlocal passed
        passed += len(data)
        if passed < 30_000:
            yield data

    with link(server, cut) as url, host(server) as near:
        put(near, *range(100))
        with connect(url, patient(batch_bytes=5000)) as far, hurried(far, timeout_s=2.0):
            found = read(far, *range(100))
    got = [n for n, value in enumerate(found) if value is not None]
    assert 0 < len(got) < 100
    assert all(found[n] == content(n) for n in got)


@needs_server
def test_a_connection_cut_inside_a_value_serves_none_of_it(server):
    with link(server, lambda data: iter((data[:700],))) as url, host(server) as near:
        put(near, 1)
        with connect(url, patient()) as far, hurried(far):
            assert read(far, 1) == [None]
            assert far.counts == (0, 1, 0, 0, 0, 1, 0)


@needs_server
def test_a_full_server_refuses_and_what_is_there_is_still_served(caplog):
    options = ("--maxmemory", "8mb", "--maxmemory-policy", "noeviction")
    with serving(*options) as server, host(server, backoff_s=60.0) as store:
        kept = store.store({key(n): content(n, 1 << 20) for n in range(12)})
        assert 0 < len(kept) < 12
        assert store.lookup([*map(key, range(12))]).count(True) == len(kept)
        assert put(store, 99) == frozenset()
        assert store.counts.refused == 13 - len(kept)
        assert (store.counts.failed, store.is_left_alone) == (0, False)
        assert len([line for line in caplog.messages if "keeps no more" in line]) == 1
        number = int.from_bytes(next(iter(kept)), "big")
        assert read(store, number) == [content(number, 1 << 20)]
        assert store.drop(kept) == len(kept)
        assert put(store, 99) == {key(99)}, "after a drop there is room again"


@needs_server
def test_objects_that_the_server_evicts_are_misses(server):
    options = ("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru")
    with serving(*options) as server, host(server) as store:
        for number in range(30):
            assert store.store({key(number): content(number, 1 << 20)}) == {key(number)}
        found = read(store, *range(30))
        assert 0 < sum(value is not None for value in found) < 10
        assert all(value in (None, content(n, 1 << 20)) for n, value in enumerate(found))
        assert store.counts[4:] == (0, 0, 0)


@needs_server
def test_a_server_that_only_reads_keeps_nothing_and_serves(server):
    with host(server) as store, server.client() as client:
        put(store, 1)
        client.replicaof("127.0.0.1", 1)
        assert put(store, 2) == frozenset()
        assert store.counts.refused == 1
        assert client.exists(name(1))


def test_an_address_where_nothing_is_says_so_at_once():
    url = f"redis://127.0.0.1:{free_port()}/3"
    begin = time.monotonic()
    with pytest.raises(RemoteUnusable) as refused:
        connect(url)
    assert time.monotonic() - begin < 1 + SLACK_S
    assert url in str(refused.value)
    assert "refused" in str(refused.value)
    assert "start a server there, or name the right one" in str(refused.value)


def test_a_socket_that_does_not_exist_says_so(tmp_path):
    with pytest.raises(RemoteUnusable, match="No such file"):
        connect(f"unix://{tmp_path}/none")


def test_another_kind_of_server_says_so():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            near, _ = listener.accept()
            with near:
                near.recv(1000)
                near.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(RemoteUnusable, match="is that a Redis or Valkey server"):
            connect(f"redis://127.0.0.1:{listener.getsockname()[1]}", patient())
        thread.join()


SECRET = "correct horse"


@pytest.fixture
def guarded():
    with serving("--requirepass", SECRET) as server:
        yield server


@needs_server
@pytest.mark.parametrize("given", ["", "wrong"])
def test_a_wrong_password_says_where_to_give_the_right_one(guarded, monkeypatch, given):
    monkeypatch.setenv("KVPROOF_REDIS_PASSWORD", given)
    with pytest.raises(RemoteUnusable, match="KVPROOF_REDIS_PASSWORD") as refused:
        connect(guarded.url, patient())
    assert guarded.url in str(refused.value)
    assert "wrong" not in str(refused.value).replace("wrong number", "")


@needs_server
def test_the_password_comes_from_the_environment_or_a_file(guarded, monkeypatch, tmp_path):
    monkeypatch.setenv("KVPROOF_REDIS_PASSWORD", SECRET)
    with connect(guarded.url, patient()) as store:
        assert put(store, 1) == {key(1)}
    monkeypatch.setenv("KVPROOF_REDIS_PASSWORD", "wrong")
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    with connect(guarded.url, patient(), password_file=file) as store:
        assert read(store, 1) == [content(1)]


@needs_server
def test_the_password_is_in_no_log_and_no_repr(guarded, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("KVPROOF_REDIS_PASSWORD", SECRET)
    with connect(guarded.url, patient(failures=1)) as store:
        put(store, 1)
        shown = [store, store.config, store._backend, *vars(store).values()]
        shown += vars(store._backend).values()
        guarded.kill()
        put(store, 1)
        assert "does not answer" in caplog.text
        assert SECRET not in " ".join([caplog.text, *map(repr, shown), *map(str, shown)])


@needs_server
def test_a_password_that_changes_is_a_failure_and_no_error(guarded, monkeypatch):
    monkeypatch.setenv("KVPROOF_REDIS_PASSWORD", SECRET)
    with connect(guarded.url, patient(failures=1)) as store:
        guarded.kill()
        guarded.start("--requirepass", "another")
        assert read(store, 1) == [None]
        assert (store.counts.failed, store.is_left_alone) == (1, True)


@needs_server
def test_a_user_of_an_access_list_may_lack_a_right(server, monkeypatch):
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "kv", "on", ">pw", "~kvproof:*", "+get", "+auth")
    monkeypatch.setenv("KVPROOF_REDIS_PASSWORD", "pw")
    with pytest.raises(RemoteUnusable, match="let this user use GET, SET, EXISTS"):
        connect(f"unix://kv@{server.socket}", patient())
    with server.client() as client:
        rights = ("+set", "+exists", "+unlink", "+scan", "+strlen", "+select")
        client.execute_command("ACL", "SETUSER", "kv", *rights)
    with connect(f"unix://kv@{server.socket}?db=1", patient()) as store:
        assert put(store, 1) == {key(1)}
        assert read(store, 1) == [content(1)]
        assert store.status().objects == 1
        assert store.drop([key(1)]) == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    new = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost")
    more = ("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem")
    try:
        subprocess.run(["openssl", *new, *more], cwd=folder, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed: it makes the certificate")
    return folder


@needs_server
def test_tls_verifies_the_server(certificate, monkeypatch):
    port = free_port()
    files = [str(certificate / file) for file in ("cert.pem", "key.pem")]
    options = ("--tls-cert-file", files[0], "--tls-key-file", files[1], "--tls-auth-clients", "no")
    url = f"rediss://127.0.0.1:{port}"
    with serving("--tls-port", str(port), "--bind", "127.0.0.1", *options) as server:
        with pytest.raises(RemoteUnusable, match="certificate verify failed"):
            connect(url, patient())
        monkeypatch.setenv("SSL_CERT_FILE", files[0])
        assert ssl.get_default_verify_paths().cafile == files[0]
        with connect(url, patient()) as store:
            assert put(store, *range(50)) == {*map(key, range(50))}
            assert store.store({key(99): os.urandom(3 << 20)}) == {key(99)}
            assert read(store, *range(50)) == [content(n) for n in range(50)]
            begin = time.monotonic()
            with server.frozen(), hurried(store):
                assert read(store, 1) == [None]
            assert time.monotonic() - begin < TIMEOUT_S + SLACK_S
        begin = time.monotonic()
        with server.frozen(), pytest.raises(RemoteUnusable, match="overloaded"):
            connect(url, RemoteConfig(timeout_s=TIMEOUT_S))
        assert time.monotonic() - begin < TIMEOUT_S + SLACK_S


def test_a_breaker_lets_one_call_per_interval_try():
    now = 0.0
    breaker = Breaker(failures=2, backoff_s=10.0, clock=lambda: now)
    assert [breaker.failed(), breaker.allows(), breaker.failed()] == [False, True, True]
    assert (breaker.is_open, breaker.allows()) == (True, False)
    now = 10.0
    assert [breaker.allows(), breaker.allows()] == [True, False], "one tries, the others do not"
    assert breaker.failed() is False, "it was open already"
    now = 19.0
    assert breaker.allows() is False
    now = 20.0
    assert breaker.allows() is True
    assert [breaker.succeeded(), breaker.succeeded()] == [True, False]
    assert [breaker.allows(), breaker.allows()] == [True, True]
    assert [breaker.failed(), breaker.allows()] == [False, True], "failures are counted anew"


def test_a_try_of_which_nothing_is_heard_does_not_close_the_door():
    now = 0.0
    breaker = Breaker(failures=1, backoff_s=10.0, clock=lambda: now)
    breaker.failed()
    now = 10.0
    assert breaker.allows()
    now = 20.0
    assert breaker.allows()
