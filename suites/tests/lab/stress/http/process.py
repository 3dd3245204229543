"""A server in a process of its own, on a free port; it is always stopped."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

_RUN = "from kvproof.harness.cli import main; main()"
_LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0})); "
_LONGEST = 120
"""Most seconds of a start or stop."""


class NotStarted(RuntimeError):
    """The server ended at its start; the message is its output."""


class Reply(NamedTuple):
    """Response of the server."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Decode the body."""
        return json.loads(self.body)


class Server:
    """`kvproof serve` as a user starts it."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None,
        descriptors: int | None = None,
    ) -> None:
        port = () if "--port" in arguments else ("--port", "0")
        run = _RUN if descriptors is None else _LIMIT.format(descriptors) + _RUN
        self.process = subprocess.Popen(
            [sys.executable, "-c", run, "serve", *port, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.process.stdout
        line = self.process.stdout.readline()
        found = re.search(r"http://(\[.*\]|[^:/]+):(\d+)", line)
        if found is None:
            out, errors = self.process.communicate(timeout=_LONGEST)
            raise NotStarted(f"exit code {self.process.returncode}: {line}{out}{errors}")
        self.host, self.port = found[1].strip("[]"), int(found[2])
        self.url = found[0]

    def errors(self) -> str:
        """Return its standard error without the progress of a slow start; only after its end."""
        assert self.process.stderr
        lines = self.process.stderr.read().splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("serve: at work for "))

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send one request; bytes unchanged, anything else as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content-type": "application/json"} if headers is None else dict(headers)
        connection = http.client.HTTPConnection(self.host, self.port, timeout=_LONGEST)
        try:
            connection.request(method, path, data, given)
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.headers.items()), answer.read())
        finally:
            connection.close()

    def complete(self, **fields: object) -> Any:
        """Return the answer of `/v1/completions`; raises AssertionError for an error."""
        reply = self.send("POST", "/v1/completions", fields)
        assert reply.status == 200, reply
        return reply.json

    def metrics(self) -> dict[str, float]:
        """Return `/metrics`: name with labels -> value."""
        lines = self.send("GET", "/metrics").body.decode().splitlines()
        pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
        return {name: float(value) for name, _, value in pairs}

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stop it; returns its exit code."""
        self.process.send_signal(how)
        return self.process.wait(_LONGEST)


@contextmanager
def serving(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    descriptors: int | None = None,
) -> Iterator[Server]:
    """Run a server while the block runs; `descriptors`: the most it may have open."""
    server = Server(arguments, environment, descriptors)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()
