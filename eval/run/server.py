"""Servers of a run: running ones, and ones that are started, awaited and stopped."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kvproof.eval.run.config import Configuration, EvalConfig, Server, command
from kvproof.eval.run.supervisor import GRACE
from kvproof.harness.errors import UsageError
from kvproof.harness.http.client import HttpClient
from kvproof.harness.records.run_directory import store
from kvproof.harness.redaction import learn

_POLL = 0.1
_KEEPER = str(Path(__file__).with_name("supervisor.py"))

_PATIENCE = 1.0
"""Seconds until a server that dropped a connection has ended, if it died."""

_LOG_TAIL = 4000
"""Characters of its log in a record."""


class Died(Exception):
    """A started server has ended, or did not become ready; `log` is its end."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


class Serving(NamedTuple):
    """A server that answers."""

    url: str
    """URL of its API, with /v1."""
    models: tuple[str, ...]
    command: tuple[str, ...]
    fresh: bool
    check: Callable[[], None]
    """Raises Died if it was started here and has ended."""


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
    yield Serving(server.base_url, models, (), bool(server.reset), lambda: None)


class _Root:
    """A server's own paths, outside of its API."""

    def __init__(self, url: str, health: str, key: str) -> None:
        self.client, self._health, self._url = HttpClient(url, key=key, timeout=10.0), health, url

    def models(self) -> tuple[str, ...]:
        """Names of its models, if reported. Raises OSError while it is not ready.

        Any status 2xx means ready.
        """
        found = _json(self.client.get(self._health))
        listed = found.get("data") if isinstance(found, dict) else None
        names = [_name(each) for each in listed] if isinstance(listed, list) else []
        return tuple(name for name in names if name)


def _json(data: bytes) -> Any:
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(data)
    return None


def _name(entry: Any) -> str:
    return str(entry.get("id", "")) if isinstance(entry, dict) else ""


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
    process = launch(line, server.environment, log)

    def check(patience: float = 0.0) -> None:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(patience)
            raise Died(f"the server ended with code {code}", _tail(log))

    try:
        models = _ready(root, check, server.ready_within, log)
        yield Serving(url, models, tuple(line), fresh=True, check=lambda: check(_PATIENCE))
    finally:
        stop(process)
        _hide_in(log)


def launch(
    line: Sequence[str], environment: Mapping[str, str], log: Path, *, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a command under its supervisor, which ends it if we cannot. Raises UsageError."""
    if shutil.which(line[0], path=environment.get("PATH")) is None:
        raise UsageError(f"cannot start {line[0]!r}: there is no such command", _INSTALLED)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(  # noqa: S603 - the command is the user's own
            [sys.executable, "-P", _KEEPER, *line],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **environment},
            start_new_session=True,
        )


def _hide_in(log: Path) -> None:
    """Engines print the options and variables that they were started with."""
    with suppress(OSError):
        store(log, log.read_bytes())


_INSTALLED = "is it installed, and on the path?"


def _ready(root: _Root, check: Callable[[], None], within: float, log: Path) -> tuple[str, ...]:
    deadline = time.monotonic() + within
    while True:
        check()
        with suppress(OSError):
            return root.models()
        if time.monotonic() > deadline:
            raise Died(f"the server was not ready within {within:g} s", _tail(log))
        time.sleep(_POLL)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server and all its processes."""
    _signal(process, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    _signal(process, signal.SIGKILL)
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def _signal(process: subprocess.Popen[bytes], which: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, which)


def free_port() -> int:
    """Return an unused port of the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _tail(log: Path) -> str:
    with suppress(OSError):
        return log.read_text(errors="replace")[-_LOG_TAIL:]
    return ""
