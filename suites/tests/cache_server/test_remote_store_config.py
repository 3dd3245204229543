"""Addresses, passwords and options of a distributed store; no server needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvproof.reference.core.validation import ConfigError
from kvproof.reference.stores.remote_address import Address, parse, password
from kvproof.reference.stores.remote_config import RemoteConfig

ADDRESSES = {
    "redis://localhost": Address("redis", "localhost"),
    "redis://10.0.0.1:7000/3": Address("redis", "10.0.0.1", 7000, database=3),
    "redis://kv@cache.example:6380": Address("redis", "cache.example", 6380, user="kv"),
    "rediss://[::1]:6379/0": Address("rediss", "::1"),
    "unix:///run/redis.sock": Address("unix", path="/run/redis.sock"),
    "unix://kv@/run/a%20b.sock?db=2": Address("unix", path="/run/a b.sock", database=2, user="kv"),
}


@pytest.mark.parametrize("url", ADDRESSES)
def test_addresses_are_read(url):
    assert parse(url) == ADDRESSES[url]


@pytest.mark.parametrize("url", [url for url in ADDRESSES if "%" not in url])
def test_what_an_address_says_is_the_same_address(url):
    assert parse(str(parse(url))) == parse(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://localhost",
        "redis://",
        "redis://:6379",
        "redis://h/x",
        "redis://h/-1",
        "redis://h?db=1",
        "unix://relative",
        "unix:///s?db=x",
        "unix:///s?timeout=1",
        "redis://h/0/1",
    ],
)
def test_other_addresses_are_refused_with_a_legal_example(url):
    with pytest.raises(ConfigError, match="for example") as refused:
        parse(url)
    assert repr(url) in str(refused.value)


@pytest.mark.parametrize("url", ["redis://h:x", "redis://h:70000", "redis://[::1"])
def test_what_is_no_address_at_all_is_refused(url):
    with pytest.raises(ConfigError, match="the address must be redis"):
        parse(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@h",
        "redis://me:hunter2@h:1/2",
        "unix://:hunter2@/run/s",
        "redis://:hun/ter2@h",
        "redis:me:hunter2@h",
        "http://me:hunter2@h",
        "redis://me:1/hunter2@h",
    ],
)
def test_an_address_with_a_password_is_refused_without_repeating_it(url):
    with pytest.raises(ConfigError) as refused:
        parse(url)
    assert "ter2" not in str(refused.value)


def test_a_password_in_an_address_is_told_where_to_go():
    with pytest.raises(ConfigError, match=r"'h' must hold no password.*KVPROOF_REDIS_PASSWORD"):
        parse("redis://:hunter2@h")


def test_a_file_comes_before_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("KVPROOF_REDIS_PASSWORD", raising=False)
    assert password() == ""
    monkeypatch.setenv("KVPROOF_REDIS_PASSWORD", "variable")
    (tmp_path / "file").write_text("in a file\n")
    assert (password(), password(tmp_path / "file")) == ("variable", "in a file")


def test_an_unusable_password_file_is_named(tmp_path):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff")
    for name, reason in (("none", "No such file"), ("empty", "is empty"), ("binary", "not text")):
        with pytest.raises(ConfigError, match=rf"{name}'.*{reason}"):
            password(tmp_path / name)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("prefix", ""),
        ("prefix", "a:b"),
        ("epoch", "ä"),
        ("epoch", "a\n"),
        ("epoch", 7),
        ("timeout_s", 0),
        ("timeout_s", float("inf")),
        ("backoff_s", -1),
        ("backoff_s", "1"),
        ("failures", 0),
        ("batch_bytes", 1.5),
        ("largest_object", 0),
    ],
)
def test_unusable_options_are_refused_with_a_legal_example(option, value):
    with pytest.raises(ConfigError, match=f"^{option} .* must be .*, for example "):
        RemoteConfig(**{option: value})


def test_without_redis_py_the_extra_is_named_and_nothing_else_breaks():
    text = (
        "import sys; sys.modules['redis'] = None\n"
        "from kvproof.reference.stores.remote_store import connect\n"
        "from kvproof.reference.core.validation import ConfigError\n"
        "try: connect('redis://127.0.0.1')\n"
        "except ConfigError as error: print(error)"
    )
    reported = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    )
    assert reported.stdout == "redis is not installed: pip install 'kvproof[redis]'\n"
