"""Each option of the engine and of the server is a flag, reaches what it configures, is checked."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from socket import socket
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from kvproof.harness.cli.actions.serving import serve
from kvproof.harness.cli.arguments.serve import ServeOptions
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.server.options import ServerConfig
from kvproof.suites.tests.cli.cli_kit import here, refused

EXEMPT = {
    "cache": "its own fields are flags",
    "groups": "the model has them",
    "experts": "the model has them",
    "record_events": "nobody would ever drain them",
}
FLAGS = {field.name: field for field in fields(ServeOptions)}


@pytest.mark.parametrize("kind", [CacheConfig, EngineConfig, ServerConfig])
def test_every_field_is_a_flag_with_its_default(kind: Any) -> None:
    own = {field.name: field for field in fields(kind) if field.name not in EXEMPT}
    assert own.keys() <= FLAGS.keys()
    for name, field in own.items():
        if field.default is not MISSING and name != "host_tier":
            assert FLAGS[name].default == field.default, name


def test_exempt_fields_are_no_flags() -> None:
    assert not EXEMPT.keys() & FLAGS.keys()


class Started:
    """What would have been served."""

    def __init__(self) -> None:
        self.built: Any = None
        self.config: Any = None
        self.name = ""

    def run(self, built: Any, config: ServerConfig, bound: socket, name: str) -> None:
        bound.close()
        self.built, self.config, self.name = built, config, name

    def value(self, option: str) -> Any:
        engine = self.built.engine.config
        for holder in (self.config, engine, engine.cache):
            if hasattr(holder, option):
                return getattr(holder, option)
        raise AssertionError(f"nothing has {option}")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    made = Started()
    monkeypatch.setattr(serve, "_run", made.run)
    return made


REACHES = {
    "block_size": (8,),
    "kernel_block_size": (16,),
    "num_blocks": (300,),
    "enable_prefix_caching": (False,),
    "hash_algorithm": ("blake2b",),
    "hit_rate_window": (7,),
    "cache_partial_blocks": (True,),
    "state_pool": ("separate",),
    "prefix_cache_state_budget": (3,),
    "prefix_cache_decode_state_interval": (128,),
    "return_routed_experts": (True,),
    "require_cached_experts": (True, "--return-routed-experts"),
    "max_batch_tokens": (99,),
    "max_requests": (5,),
    "steps_in_flight": (2,),
    "num_drafts": (2,),
    "poison_freed": (True,),
    "host_tier": ("1GiB",),
    "weights": ("org/model",),
    "host": ("localhost",),
    "port": (0,),
    "max_connections": (9,),
    "request_timeout": (2.5,),
    "max_waiting": (3,),
    "max_tokens": (33,),
    "max_prompt_tokens": (44,),
    "max_body_bytes": (5555,),
    "max_prompts": (2,),
    "max_images": (1,),
    "max_image_bytes": (77,),
    "grace": (1.5,),
}
"""Option -> a value that is not the default, and flags that it needs."""
ELSEWHERE = {
    "api_key": "never on the command line: see below",
    "api_key_file": "see below",
    "admin_api_key": "never on the command line: see below",
    "admin_api_key_file": "see below",
    "model": "see below",
    "served_model_name": "see below",
    "max_model_len": "see below",
    "device": "of Hugging Face models",
    "dtype": "of Hugging Face models",
    "mode": "of Hugging Face models",
    "attention": "of Hugging Face models",
    "memory": "of Hugging Face models",
    "disk_tier": "needs a folder: see below",
    "remote": "needs a store: test_serve_remote",
    "remote_secret_file": "needs a store: test_serve_remote",
}


def test_every_flag_is_tried() -> None:
    assert FLAGS.keys() == REACHES.keys() | ELSEWHERE.keys()
    assert not REACHES.keys() & ELSEWHERE.keys()


def arguments(option: str, value: object) -> list[str]:
    flag = option.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", str(value)]


@pytest.mark.parametrize("option", REACHES)
def test_it_reaches_what_it_configures(option: str, started: Started, tmp_path: Path) -> None:
    value, *more = REACHES[option]
    free = [] if option == "port" else ["--port", "0"]
    done = here(
        "serve", "--model", "symbolic", *free, *arguments(option, value), *more, cwd=tmp_path
    )
    assert done.code == 0, done
    assert started.value(option) == value


def test_the_names_and_lengths_of_a_model_are_told(started: Started, tmp_path: Path) -> None:
    done = here(
        *("serve", "--model", "symbolic", "--port", "0", "--max-model-len", "100"),
        *("--served-model-name", "toy"),
        cwd=tmp_path,
    )
    assert done.code == 0, done
    assert (started.name, started.built.language.max_len) == ("toy", 100)


@pytest.mark.parametrize("name", ["api_key", "admin_api_key"])
def test_a_key_comes_from_a_file_or_the_environment(
    name: str, started: Started, tmp_path: Path
) -> None:
    words = ("serve", "--model", "symbolic", "--port", "0")
    option, variable = f"--{name.replace('_', '-')}", f"KVPROOF_{name.upper()}"
    (tmp_path / "key").write_text("s3cret\n")
    assert here(*words, f"{option}-file", "key", cwd=tmp_path).code == 0
    assert getattr(started.config, name) == "s3cret"
    assert here(*words, cwd=tmp_path, **{variable: "0ther"}).code == 0
    assert getattr(started.config, name) == "0ther"
    done = here(*words, cwd=tmp_path, **{variable: "two words"})
    refused(done, f"{name} '...' must be printable ASCII without spaces")
    refused(here(*words, option, "s3cret", cwd=tmp_path), "on the command line", variable)
    (tmp_path / "key").write_text("\n")
    refused(here(*words, f"{option}-file", "key", cwd=tmp_path), "has an empty first line")
    refused(here(*words, f"{option}-file", "no", cwd=tmp_path), "cannot be read: No such file")


def test_a_disk_tier_is_a_folder_and_a_size(started: Started, tmp_path: Path) -> None:
    disk = ("--disk-tier", str(tmp_path / "kv"), "1GiB", "--host-tier", "1MiB", "--weights", "w")
    done = here("serve", "--model", "symbolic", "--port", "0", *disk, cwd=tmp_path)
    assert done.code == 0, done
    assert started.value("disk_tier") == (str(tmp_path / "kv"), "1GiB")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("block_size", 0, "block_size 0 must be a whole number, at least 1, for example 64"),
        ("kernel_block_size", 5, "kernel_block_size 5 must divide block_size 64; legal choices: 1"),
        ("num_blocks", 1, "num_blocks 1 must be a whole number, at least 2, for example 1024"),
        ("hash_algorithm", "md4", "hash_algorithm 'md4' must be one of"),
        ("max_requests", 0, "max_requests 0 must be a whole number, at least 1"),
        ("max_batch_tokens", 0, "max_batch_tokens 0 must be a whole number, at least 1"),
        ("steps_in_flight", 0, "steps_in_flight 0 must be a whole number, at least 1"),
        ("num_drafts", -1, "--num-drafts: -1 is not a number from 0"),
        ("prefix_cache_state_budget", -1, "--prefix-cache-state-budget: -1 is not a number"),
        ("prefix_cache_decode_state_interval", 7, "must be 0 or a multiple of the block size 64"),
        ("require_cached_experts", True, "false unless return_routed_experts is true"),
        ("host_tier", "much", "host_tier 'much' must be bytes, or a number with one of"),
        ("max_model_len", 1, "max_model_len 1 must be a whole number, at least 2"),
        ("port", 70000, "port 70000 must be a whole number from 0 to 65535, for example 8000"),
        ("host", "", "host '' must be an address or a name of this machine"),
        ("host", "192.0.2.1", "cannot listen on 192.0.2.1 port"),
        ("host", "nowhere.invalid", "cannot listen on nowhere.invalid port"),
        ("max_connections", 0, "max_connections 0 must be a whole number, at least 1"),
        ("request_timeout", 0.0, "request_timeout 0.0 must be seconds, above 0"),
        ("request_timeout", float("inf"), "--request-timeout: inf is not a number from 0"),
        ("max_waiting", -1, "--max-waiting: -1 is not a number from 0"),
        ("max_tokens", 0, "max_tokens 0 must be a whole number, at least 1"),
        ("max_body_bytes", 1, "max_body_bytes 1 must be a whole number, at least 1024"),
        ("grace", -1.0, "--grace: -1.0 is not a number from 0"),
        ("grace", float("nan"), "--grace: nan is not a number from 0"),
        ("mode", "fast", "mode"),
    ],
)
def test_an_invalid_value_is_refused(
    option: str, value: object, message: str, started: Started, tmp_path: Path
) -> None:
    done = here("serve", "--model", "symbolic", *arguments(option, value), cwd=tmp_path)
    refused(done, message)
    assert started.built is None


def test_a_model_is_needed(tmp_path: Path) -> None:
    refused(here("serve", cwd=tmp_path), "--model")


def test_missing_packages_are_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    monkeypatch.delitem(
        __import__("sys").modules, "kvproof.reference.server.running", raising=False
    )
    monkeypatch.delattr("kvproof.reference.server.running", raising=False)
    done = here("serve", "--model", "symbolic", cwd=tmp_path)
    refused(done, "uvicorn", "pip install 'kvproof[serve]'")
