"""`kvproof serve --remote`: servers share what they computed; errors name what is missing."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from kvproof.harness.cli.actions.serving import serve
from kvproof.reference.tiers.remote import open_remote
from kvproof.suites.tests.cli.cli_kit import here, refused
from kvproof.suites.tests.lab.stress.http.process import Server, serving

TINY = (
    "--model", "symbolic", "--block-size", "4", "--num-blocks", "17", "--max-model-len", "64",
    "--host-tier", "64",
)  # fmt: skip
"""A pool of 16 blocks and next to no host memory: most of the cache is in the remote store."""
TOY = (*TINY, "--weights", "toy")
PROMPTS = [f"{name} was here long before the others came" for name in ("ada", "bo", "cleo")]
SECRET = "hunter2-hunter2-hunter2"


@contextmanager
def cache_server(folder: Path) -> Iterator[tuple[str, ...]]:
    pytest.importorskip("zmq", reason="the extra server is not installed")
    from kvproof.suites.tests.lab.stress.cache_server.process import ServerProcess

    with ServerProcess(folder, size=4 << 20) as running:
        yield ("--remote", running.address)


@contextmanager
def redis(folder: Path) -> Iterator[tuple[str, ...]]:
    pytest.importorskip("redis", reason="the extra redis is not installed")
    from kvproof.suites.tests.cache_server import remote_kit

    if remote_kit.BINARY is None:
        pytest.skip("no redis-server or valkey-server on PATH")
    password = folder / "password"
    password.write_text(f"{SECRET}\n")
    with ExitStack() as ends:
        running = remote_kit.Server("--requirepass", SECRET)
        ends.callback(running.kill)
        yield ("--remote", running.url, "--remote-secret-file", str(password))


def ask(server: Server, prompt: str) -> tuple[int, str]:
    """Tokens of the hit, and the answer."""
    answer = server.complete(model="symbolic", prompt=prompt, max_tokens=8)
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"][0]["text"]


@pytest.mark.slow(reason="starts many processes")
@pytest.mark.parametrize("store", [cache_server, redis])
def test_a_server_hits_what_another_one_computed(store: Any, tmp_path: Path) -> None:
    with store(tmp_path) as remote, serving(*TOY, *remote) as second:
        with serving(*TOY, *remote) as first:
            computed = [ask(first, prompt) for prompt in PROMPTS]
            assert [hit for hit, _ in computed] == [0, 0, 0]
            while_both_run = ask(second, PROMPTS[0])
            assert first.end() == 0
        after_the_first_ended = ask(second, PROMPTS[2])
        loaded = second.metrics()['kvproof_tier_hit_tokens_total{request="new",tier="remote"}']
    shortest = min(map(len, PROMPTS)) // 4 * 4 - 4
    assert while_both_run[0] >= shortest
    assert after_the_first_ended[0] >= shortest
    assert loaded == while_both_run[0] + after_the_first_ended[0]
    assert [while_both_run[1], after_the_first_ended[1]] == [computed[0][1], computed[2][1]]


@pytest.mark.slow(reason="starts many processes")
def test_weights_of_another_name_hit_nothing(tmp_path: Path) -> None:
    with cache_server(tmp_path) as remote:
        with serving(*TOY, *remote) as first:
            ask(first, PROMPTS[0])
            assert first.end() == 0
        with serving(*TINY, "--weights", "others", *remote) as second:
            assert ask(second, PROMPTS[0])[0] == 0


@pytest.mark.slow(reason="starts many processes")
def test_a_store_that_dies_costs_hits_and_no_request(tmp_path: Path) -> None:
    pytest.importorskip("zmq", reason="the extra server is not installed")
    from kvproof.suites.tests.lab.stress.cache_server.process import ServerProcess

    store = ServerProcess(tmp_path, size=4 << 20)
    with store, serving(*TOY, "--remote", store.address) as server:
        before = [ask(server, prompt)[1] for prompt in PROMPTS]
        store.kill()
        assert [ask(server, prompt)[1] for prompt in PROMPTS] == before
        assert server.metrics()["kvproof_tier_remote_failures_total"] > 0


@pytest.mark.parametrize(
    ("url", "messages"),
    [
        ("http://store.example", ("must begin with one of redis://", "ipc://", "for example")),
        (f"http://me:{SECRET}@store.example", ("--remote has a URL with a password",)),
        (f"redis://me:{SECRET}@store.example", ("on the command line", "--remote-secret-file")),
        (f"redis://store.example?password={SECRET}", ("on the command line",)),
        (f"tcp://me:{SECRET}@127.0.0.1:1", ("on the command line",)),
        ("tcp://127.0.0.1", ("must have the number of a host and a port",)),
        ("ipc://relative", ("absolute path",)),
        ("redis://127.0.0.1:1", ("redis://127.0.0.1:1/0 cannot be used",)),
    ],
)
def test_an_error_names_what_is_wrong_and_no_secret(
    url: str, messages: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("redis", reason="the extra redis is not installed")
    monkeypatch.setattr(serve, "_run", lambda *_: pytest.fail("it was served"))
    done = here("serve", *TOY, "--port", "0", "--remote", url, cwd=tmp_path)
    refused(done, messages[0])
    assert all(message in done.err for message in messages), done.err
    assert SECRET not in str(done)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TINY, "weights '' must be the name of the weights"),
        (("--model", "symbolic", "--weights", "w"), "host_tier '0' must be above 0"),
    ],
)
def test_host_memory_and_a_name_of_the_weights_are_needed(
    options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    url = ("--remote", "redis://127.0.0.1:1")
    refused(here("serve", *options, "--port", "0", *url, cwd=tmp_path), message)


@pytest.mark.slow(reason="starts processes and waits for them")
def test_a_cache_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    pytest.importorskip("zmq", reason="the extra server is not installed")
    address = f"ipc://{tmp_path / 'nobody.sock'}"
    done = here("serve", *TOY, "--port", "0", "--remote", address, cwd=tmp_path)
    refused(done, f"no cache server answered at {address}")
    assert "start one with `kvproof cache-server`" in done.err


@pytest.mark.parametrize(
    ("module", "url", "command"),
    [
        ("redis", "redis://127.0.0.1:1", "pip install 'kvproof[redis]'"),
        ("zmq", "tcp://127.0.0.1:1", "pip install 'kvproof[server]'"),
    ],
)
def test_a_missing_package_is_named_with_the_command(
    module: str, url: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = {"redis": "stores.remote_redis", "zmq": "cache_server.link"}
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"kvproof.reference.{users[module]}", raising=False)
    with pytest.raises(ValueError, match=re.escape(command)):
        open_remote(url, weights="w")
