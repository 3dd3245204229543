"""A client of chat completions that turns whatever a server does into one result of a class."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from kvproof.eval.http.chat_completion import Chunk, Malformed, parse_completion, parse_event
from kvproof.eval.http.response import Answer, left
from kvproof.eval.run.records import Outcome, Usage
from kvproof.harness.errors import UsageError

_MOST_WAIT = 8.0
"""Seconds between two tries at most; they begin at a half and double."""

_TRY_AGAIN = (408, 409, 425, 429)
"""Client errors that pass; every other one says that the request itself is refused."""


class Reply(NamedTuple):
    """What came of a prompt, after the last try."""

    outcome: Outcome
    text: str = ""
    finish_reason: str = ""
    usage: Usage = Usage()
    seconds: float = 0.0
    first_token: float | None = None
    tries: int = 1
    faults: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Of the answer's tokens, where they are asked for and told."""
    thought: str = ""
    """The answer of the turn before."""


def joined(first: Reply, second: Reply) -> Reply:
    """Two turns as one: the answer of the second, the counts of the first, all of the time."""
    return second._replace(
        usage=first.usage,
        seconds=first.seconds + second.seconds,
        first_token=first.first_token,
        tries=max(first.tries, second.tries),
        faults=first.faults + second.faults,
        thought=first.text,
    )


class _Failed(Exception):
    """One try failed. `again`: the next one may not."""

    def __init__(self, outcome: Outcome, message: str, *, again: bool = True) -> None:
        super().__init__(message)
        self.outcome, self.again = outcome, again


class Aborted(Exception):
    """The client was closed while a request was under way."""


class Client:
    """Asks one server, from any number of threads. `url` ends before `/chat/completions`.

    `timeout` bounds a whole try in seconds, however slowly bytes arrive; `retries` are made after
    a failed one. `fields` go into every request. Proxies of the environment are not used.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str = "",
        timeout: float = 120.0,
        retries: int = 2,
        stream: bool = True,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        self._parts = _checked(url)
        self._headers = {"Content-Type": "application/json", "User-Agent": "kvproof"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._timeout, self._retries, self._stream = timeout, retries, stream
        self._fields = dict(fields or {})
        self._closed = threading.Event()
        self._open: set[socket.socket] = set()

    def close(self) -> None:
        """Cut off what is under way; its threads raise Aborted."""
        self._closed.set()
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def ask(self, prompt: str, **fields: Any) -> Reply:
        """Send one user message. `fields` go before common ones. Never raises for a server."""
        body = self._body(prompt, fields)
        faults: list[str] = []
        for attempt in range(1, self._retries + 2):
            begun = time.monotonic()
            try:
                reply = self._try(body, begun)
            except _Failed as failed:
                faults.append(f"{failed.outcome}: {failed}")
                if failed.again and attempt <= self._retries:
                    self._wait(attempt)
                    continue
                seconds = time.monotonic() - begun
                return Reply(failed.outcome, "", seconds=seconds, tries=attempt, faults=(*faults,))
            return reply._replace(tries=attempt, faults=(*faults,))
        raise AssertionError("the last try returns")

    def _body(self, prompt: str, fields: Mapping[str, Any]) -> bytes:
        body = {**self._fields, **fields, "messages": [{"role": "user", "content": prompt}]}
        if self._stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return msgspec.json.encode(body)

    def _wait(self, attempt: int) -> None:
        if self._closed.wait(min(_MOST_WAIT, 2.0 ** (attempt - 2))):
            raise Aborted

    def _try(self, body: bytes, begun: float) -> Reply:
        deadline = begun + self._timeout
        try:
            with self._request("POST", "/chat/completions", body, deadline) as answer:
                _check_status(answer)
                return self._read(answer, begun)
        except (OSError, http.client.HTTPException) as error:
            if self._closed.is_set():
                raise Aborted from error
            if isinstance(error, TimeoutError):
                raise _Failed("timeout", f"no answer within {self._timeout:g} s") from error
            raise _Failed("dropped", _in_words(error)) from error
        except Malformed as error:
            raise _Failed(error.outcome, str(error)) from error

    def get(self, path: str) -> bytes:
        """Return what is there; `path` is below the server's address. Raises OSError unless 2xx."""
        return self._simple("GET", path)

    def post(self, path: str) -> None:
        """Send an order without content, such as to empty the cache. Raises OSError."""
        self._simple("POST", path)

    @contextmanager
    def exchange(
        self, method: str, path: str, body: bytes, *, timeout: float, whole: bool = False
    ) -> Iterator[Answer]:
        """Send one request as it is; leaving the block closes its connection, done or not.

        `whole`: as for `_request`. Raises OSError, HTTPException, Malformed, Aborted.
        """
        deadline = time.monotonic() + timeout
        with self._request(method, path, body, deadline, whole=whole) as answer:
            yield answer

    def _simple(self, method: str, path: str) -> bytes:
        deadline = time.monotonic() + self._timeout
        try:
            with self._request(method, path, b"", deadline, whole=True) as answer:
                data = b"".join(answer.pieces())
                if answer.status >= 300:
                    raise OSError(f"{method} {path} gave {answer.status}")
                return data
        except http.client.HTTPException as error:
            raise OSError(f"{method} {path}: {_in_words(error)}") from error

    @contextmanager
    def _request(
        self, method: str, path: str, body: bytes, deadline: float, *, whole: bool = False
    ) -> Iterator[Answer]:
        """`whole`: the path is one of the server rather than of its API."""
        parts = self._parts
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=left(deadline))
        connection.connect()
        wire: socket.socket = connection.sock
        self._open.add(wire)
        try:
            if self._closed.is_set():
                raise Aborted
            target = path if whole else parts.path.rstrip("/") + path
            connection.request(method, target, body, self._headers)
            wire.settimeout(left(deadline))
            yield Answer(connection.getresponse(), wire, deadline)
        finally:
            self._open.discard(wire)
            connection.close()

    def _read(self, answer: Answer, begun: float) -> Reply:
        if "text/event-stream" in answer.kind:
            return _gathered(answer, begun)
        chunk = parse_completion(b"".join(answer.pieces()))
        return _reply([chunk], time.monotonic() - begun, None)


def _gathered(answer: Answer, begun: float) -> Reply:
    """Put a stream together. One that ends without its last event has lost its server."""
    chunks: list[Chunk] = []
    first: float | None = None
    for line in answer.lines():
        chunk = parse_event(line)
        if chunk is None:
            continue
        if chunk.last:
            break
        if chunk.text and first is None:
            first = time.monotonic() - begun
        chunks.append(chunk)
    else:
        if not any(chunk.finish_reason for chunk in chunks):
            raise http.client.IncompleteRead(b"")
    return _reply(chunks, time.monotonic() - begun, first)


def _reply(chunks: list[Chunk], seconds: float, first: float | None) -> Reply:
    """Put chunks together. A model may choose to say nothing; one that was cut off did not."""
    text = "".join(chunk.text for chunk in chunks)
    reason = next((c.finish_reason for c in reversed(chunks) if c.finish_reason), "")
    if not text.strip() and reason != "stop":
        raise _Failed("empty", f"an answer without text, finish reason {reason or 'none'}")
    usage = next((c.usage for c in reversed(chunks) if c.usage), Usage())
    logprobs = tuple(value for chunk in chunks for value in chunk.logprobs)
    return Reply("answered", text, reason, usage, seconds, first, logprobs=logprobs)


def _check_status(answer: Answer) -> None:
    if answer.status < 300:
        return
    text = next(answer.pieces(), b"")[:300].decode(errors="replace")
    message = f"{answer.status} {' '.join(text.split())}".strip()
    if answer.status >= 500 or answer.status in _TRY_AGAIN:
        raise _Failed("server_error", message)
    raise _Failed("refused", message, again=False)


def _in_words(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "the connection ended inside the answer"
    return f"{type(error).__name__}: {error}"


def _checked(url: str) -> Any:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(
            f"{url!r} is no address of a server", "for example http://127.0.0.1:8000/v1"
        )
    return parts
