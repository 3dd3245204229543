"""HTTP requests to one server, each within its time, from any number of threads."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import SplitResult, urlsplit

from kvproof.harness.errors import UsageError
from kvproof.harness.http.response import Response, TooLong, left

_PORTS = {"http": 80, "https": 443}


class Aborted(Exception):
    """The client was closed while a request was under way."""


class HttpClient:
    """Sends requests to one server. `url` is that of its API, for example `http://host:8000/v1`.

    `timeout` bounds a whole request in seconds, however slowly bytes arrive. Proxies of the
    environment are not used. Raises UsageError for a `url` that is none.
    """

    def __init__(self, url: str, *, key: str = "", timeout: float = 120.0) -> None:
        self._parts = _checked(url)
        self._headers = {"Content-Type": "application/json", "User-Agent": "kvproof"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self.timeout = timeout
        self.closed = threading.Event()
        self._open: set[socket.socket] = set()

    def close(self) -> None:
        """Cut off requests under way; their threads raise Aborted."""
        self.closed.set()
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def get(self, path: str) -> bytes:
        """Return the body at `path`, below the server's address. Raises OSError unless 2xx."""
        return self._simple("GET", path)

    def post(self, path: str, body: bytes = b"") -> None:
        """Send an order, such as to empty the cache. Raises OSError."""
        self._simple("POST", path, body)

    def _simple(self, method: str, path: str, body: bytes = b"") -> bytes:
        try:
            with self.exchange(method, path, body, whole=True) as response:
                data = b"".join(response.pieces())
        except (http.client.HTTPException, TooLong) as error:
            raise OSError(f"{method} {path}: {in_words(error)}") from error
        if response.status >= 300:
            raise OSError(f"{method} {path} gave {response.status}")
        return data

    @contextmanager
    def exchange(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        timeout: float | None = None,
        whole: bool = False,
    ) -> Iterator[Response]:
        """Send one request; leaving the block closes its connection at any time.

        `path` is below the address of the API, or with `whole` below that of the server. `timeout`
        in seconds replaces that of the client. Raises OSError, HTTPException, TooLong, Aborted.
        """
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        connection = self._connected(deadline)
        wire: socket.socket = connection.sock
        self._open.add(wire)
        try:
            if self.closed.is_set():
                raise Aborted
            target = path if whole else self._parts.path.rstrip("/") + path
            connection.request(method, target, body, self._headers)
            wire.settimeout(left(deadline))
            yield Response(connection.getresponse(), wire, deadline)
        finally:
            self._open.discard(wire)
            connection.close()

    def _connected(self, deadline: float) -> http.client.HTTPConnection:
        parts = self._parts
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        # without a port, http.client would look for one in the host, and find one in `::1`
        port = parts.port or _PORTS[parts.scheme]
        connection = kind(parts.hostname or "", port, timeout=left(deadline))
        connection.connect()
        return connection


def in_words(error: Exception) -> str:
    """Describe the failure of a connection."""
    if isinstance(error, http.client.IncompleteRead):
        return "the connection ended inside the answer"
    return f"{type(error).__name__}: {error}"


def _checked(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        usable = usable and parts.username is None
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(
            f"{url!r} is no address of a server", "for example http://127.0.0.1:8000/v1"
        )
    return parts
