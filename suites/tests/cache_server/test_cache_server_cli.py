"""`kvproof cache-server` as a user starts, asks and stops it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import urllib.request
from contextlib import contextmanager

import msgspec
import pytest

pytest.importorskip("zmq", reason="the cache server needs the extra `server`")

from kvproof.reference.cache_server.client import connect
from kvproof.reference.cache_server.connection import CacheServerRefused
from kvproof.reference.cache_server.core import CacheServer, Settings
from kvproof.reference.cache_server.process import this_process
from kvproof.reference.cache_server.server import Server
from kvproof.suites.reference.cache_server.model import content, key
from kvproof.suites.tests.cli.cli_kit import KVPROOF, Started, here, refused

TOKEN = "a" * 32


class Serving(Started):
    """A server writes no records."""

    def __init__(self, cwd, options):
        self.cwd, self.out, self.err = cwd, cwd / "out.txt", cwd / "err.txt"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [KVPROOF, "cache-server", *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )


@contextmanager
def serving(cwd, *options):
    running = Serving(cwd, options)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def address(tmp_path):
    return f"ipc://{tmp_path / 'cache.sock'}"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_server_says_where_it_is_serves_and_stops_cleanly(tmp_path, address):
    port = free_port()
    options = ("--memory", "2MiB", "--address", address, "--metrics-port", str(port))
    with serving(tmp_path, *options) as running:
        running.until(lambda: "metrics at" in running.out.read_text())
        with connect(address, namespace="weights [1]", timeout=30) as client:
            client.store({key(0): content(key(0), 1000)})
            lease = client.acquire([key(0), key(1)])
            reported = here("cache-server", "status", "--address", address, cwd=tmp_path)
            assert reported.code == 0
            for text in ("of 2 MiB used", "1 readable, 1 under a lease", "weights [1]", "live"):
                assert text in reported.out, reported.out
            reported = here("cache-server", "status", "--address", address, "--json", cwd=tmp_path)
            report = json.loads(reported.out)
            assert (report["objects"], report["hits"], report["misses"]) == (1, 1, 1)
            url = f"http://127.0.0.1:{port}/metrics"
            running.until(lambda: "leased_objects 1.0" in fetched(url))
            assert "kvproof_cache_server_stored_objects_total 1.0" in fetched(url)
            lease.release()
        done = running.send(signal.SIGTERM, group=False)
        assert (done.code, done.err) == (0, "")
        assert f"2 MiB at {address}" in done.out
    assert not (tmp_path / "cache.sock").exists()


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 0), ("SIGINT", 130)])
def test_a_signal_during_a_deallocation_stops_a_server(tmp_path, address, monkeypatch, name, code):
    turns = []

    class Message:
        def __del__(self):
            signal.raise_signal(signal.Signals[name])

    def turn(server):
        turns.append(server)
        assert len(turns) == 1, "nobody noticed the signal"
        Message()

    monkeypatch.setattr(Server, "_turn", turn)
    done = here("cache-server", "--memory", "1MiB", "--address", address, cwd=tmp_path)
    assert (done.code, len(turns)) == (code, 1), done.err
    assert not (tmp_path / "cache.sock").exists()


def test_metrics_are_the_figures_of_a_report():
    pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")
    from prometheus_client import CollectorRegistry, generate_latest

    from kvproof.reference.cache_server.metrics import ServerCollector

    core = CacheServer(Settings(1 << 20), generation=1, place=(this_process(), -1))
    report = msgspec.structs.replace(core.report(), hits=3, refused={"full": 2})
    registry = CollectorRegistry()
    registry.register(ServerCollector(lambda: report))
    lines = generate_latest(registry).decode().splitlines()
    assert "kvproof_cache_server_capacity_bytes 1.048576e+06" in lines
    assert "kvproof_cache_server_hits_total 3.0" in lines
    assert 'kvproof_cache_server_refused_total{reason="full"} 2.0' in lines
    assert 'kvproof_cache_server_sessions{state="live"} 0.0' in lines


def fetched(url):
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode()


def test_ctrl_c_stops_a_server(tmp_path, address):
    options = ("--memory", "1MiB", "--address", address)
    with serving(tmp_path, *options) as running:
        running.until(lambda: address in running.out.read_text())
        assert running.send(signal.SIGINT, group=True).code == 130


def test_a_token_keeps_others_out(tmp_path, address, token_file):
    options = ("--memory", "1MiB", "--address", address, "--token-file", str(token_file))
    with serving(tmp_path, *options) as running:
        running.until(lambda: address in running.out.read_text())
        for token in ("", "b" * 32):
            with (
                connect(address, token=token, timeout=30) as client,
                pytest.raises(CacheServerRefused, match="token is"),
            ):
                client.lookup([key(0)])
        with connect(address, token=TOKEN, timeout=30) as client:
            assert client.lookup([key(0)]) == [False]
        second = here("cache-server", "--memory", "1MiB", "--address", address, cwd=tmp_path)
        assert second.code == 2
        assert "another cache server listens" in second.err


def test_a_network_interface_is_served_with_a_token(tmp_path, token_file):
    port = free_port()
    options = ("--memory", "1MiB", "--host", "0.0.0.0", "--port", str(port))
    with serving(tmp_path, *options, "--token-file", str(token_file)) as running:
        running.until(lambda: str(port) in running.out.read_text())
        with connect(f"tcp://127.0.0.1:{port}", token=TOKEN, timeout=30) as client:
            assert client.store({key(0): b"1"}) == {key(0)}
            assert [each.provable for each in client.report().sessions] == [True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--memory 1KiB", "memory '1KiB' is less than 1 MiB"),
        ("--memory lots", "memory 'lots' is not a size"),
        ("--memory 900TiB", "cannot be had"),
        ("--memory 1MiB --address cache.sock", "for example ipc:///run/kvproof/cache.sock"),
        ("--memory 1MiB --address tcp://0.0.0.0:7", "can be reached from other machines"),
        ("--memory 1MiB --host 0.0.0.0", "there is no token"),
        ("--memory 1MiB --host 0.0.0.0 --address ipc:///a", "both address"),
        ("--memory 1MiB --token-file none", "cannot read the token in 'none'"),
        ("--memory 1MiB --token-file short", "has 2 characters"),
        ("--memory 1MiB --token-file /dev/full", "it is no regular file"),
        ("--memory 1MiB --token-file open", "is open to other users"),
        ("--memory 1MiB --patience 0", "patience 0 must be positive"),
        ("status --address ipc:///tmp/kvproof-nobody.sock", "other users can write to the folder"),
        ("--memory 1MiB --address ipc:///tmp/kvproof.sock", "other users can write to the folder"),
    ],
)
def test_what_cannot_be_served_is_said(tmp_path, options, message):
    for name, text, mode in (("short", "ab", 0o600), ("open", TOKEN, 0o644)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    done = here("cache-server", *options.split(), cwd=tmp_path)
    refused(done, message)
    assert done.out == ""
