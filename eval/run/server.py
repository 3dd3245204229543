"""Servers of a run: running ones, and ones that are started, awaited and stopped."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kvproof.eval.run.config import (
    Configuration,
    EvalConfig,
    Server,
    command,
    own_command,
)
from kvproof.harness.errors import UsageError
from kvproof.harness.http.client import HttpClient
from kvproof.harness.isolation.supervised import Supervised
from kvproof.harness.records.run_directory import store
from kvproof.harness.redaction import learn

_PATIENCE = 1.0
"""Seconds until a server that dropped a connection has ended, if it died."""


class Serving(NamedTuple):
    """A server that answers."""

    url: str
    """URL of its API, with /v1."""
    models: tuple[str, ...]
    command: tuple[str, ...]
    fresh: bool
    check: Callable[[], None]
    """Raises Died if it was started here and has ended."""
    engine: str = ""
    version: str = ""


@contextmanager
def serving(config: EvalConfig, one: Configuration, log: Path) -> Iterator[Serving]:
    """Yield a ready server of this configuration, with an empty cache if possible.

    A started server is stopped with all its processes. Raises Died, or UsageError for a running
    server that does not answer.
    """
    server = config.server_of(one)
    if server.launch:
        with _started(config, one, log) as found:
            yield found
        return
    root = _Root(server.base_url, server.health, key_of(server))
    try:
        if server.reset:
            root.client.post(server.reset)
        models = root.models()
    except OSError as error:
        raise UsageError(
            f"configuration {one.name!r}: the server {server.base_url} does not answer: {error}",
            "start it, or correct base_url, health or reset",
        ) from error
    engine, version = root.described()
    yield Serving(server.base_url, models, (), bool(server.reset), lambda: None, engine, version)


class _Root:
    """A server's own paths, outside of its API."""

    def __init__(self, url: str, health: str, key: str) -> None:
        self.client, self._health, self._url = HttpClient(url, key=key, timeout=10.0), health, url
        self._engine = ""

    def models(self) -> tuple[str, ...]:
        """Names of its models, if reported. Raises OSError while it is not ready.

        Any status 2xx means ready.
        """
        found = _json(self.client.get(self._health))
        listed = found.get("data") if isinstance(found, dict) else None
        models = listed if isinstance(listed, list) else []
        self._engine = next((owner for each in models if (owner := _text(each, "owned_by"))), "")
        names = [_text(each, "id") for each in models]
        return tuple(name for name in names if name)

    def described(self) -> tuple[str, str]:
        """Name and version of the engine, as far as it reports them; call `models` before."""
        for path in _VERSIONS:
            with suppress(OSError):
                if found := _text(_json(self.client.get(path)), "version"):
                    return self._engine, found
        return self._engine, ""


_VERSIONS = ("/version", "/get_server_info")
"""Paths of vLLM and SGLang."""


def _json(data: bytes) -> Any:
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(data)
    return None


def _text(entry: Any, name: str) -> str:
    found = entry.get(name) if isinstance(entry, dict) else None
    return found if isinstance(found, str) else ""


def key_of(server: Server) -> str:
    """Key from its environment variable. Raises UsageError if that is not set."""
    variable = server.api_key_env
    if not variable:
        return ""
    found = os.environ.get(variable, "")
    if not found:
        raise UsageError(
            f"the variable {variable} with the server's key is not set", f"export {variable}=..."
        )
    learn(found)
    return found


@contextmanager
def _started(config: EvalConfig, one: Configuration, log: Path) -> Iterator[Serving]:
    server, port = config.server_of(one), free_port()
    line = command(config, one, port=port)
    url = f"http://127.0.0.1:{port}/v1"
    root = _Root(url, server.health, key_of(server))
    try:
        with Supervised(line, log, environment=server.environment) as process:
            models = process.until(root.models, server.ready_within)
            check = partial(process.check, _PATIENCE)
            engine, version = root.described()
            if Path(line[0]) == own_command():
                version = version or metadata.version("kvproof")
            yield Serving(
                url, models, tuple(line), fresh=True, check=check, engine=engine, version=version
            )
    finally:
        _hide_in(log)


def _hide_in(log: Path) -> None:
    """Engines print the options and variables that they were started with."""
    with suppress(OSError):
        store(log, log.read_bytes())


def free_port() -> int:
    """Return an unused port of the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
