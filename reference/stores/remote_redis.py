"""A Redis or Valkey server as the engine of a distributed store, through redis-py.

redis-py rather than valkey-py, which is a fork of it: both speak to both servers, and users of
either have redis-py. Without the extra `redis` this module is not imported.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import (
    Connection,
    ConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.credentials import UsernamePasswordCredentialProvider
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    InvalidResponse,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from kvproof.reference.stores.object_store import Bytes
from kvproof.reference.stores.remote_address import PASSWORD_VARIABLE, Address
from kvproof.reference.stores.remote_backend import BackendDown, Kept

READ_BYTES = 1 << 20
"""Asked of the socket at once: values are large."""
PAGE = 1000
"""Names of one step of a scan."""
SHORTEST_S = 1e-3
"""A socket's timeout of 0 would mean: do not wait at all."""
_CLASSES = {"redis": Connection, "rediss": SSLConnection, "unix": UnixDomainSocketConnection}
_CALL = threading.local()
"""`until`: when the call of this thread must be over."""


class _TimedSocket:
    """A socket whose waits all end by the call's deadline, even if bytes arrive one by one."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner = inner
        self._limit = inner.gettimeout()

    def __getattr__(self, name: str) -> Any:
        """Everything that does not wait is the socket's own."""
        return getattr(self._inner, name)

    def settimeout(self, limit: float | None) -> None:
        self._limit = limit
        self._inner.settimeout(limit)

    def recv(self, *asked: Any) -> bytes:
        return self._timed().recv(*asked)

    def recv_into(self, *asked: Any) -> int:
        return self._timed().recv_into(*asked)

    def sendall(self, *asked: Any) -> None:
        self._timed().sendall(*asked)

    def _timed(self) -> socket.socket:
        left = max(_CALL.until - time.monotonic(), SHORTEST_S)
        self._inner.settimeout(left if self._limit is None else min(left, self._limit))
        return self._inner


def _timed(kind: type[Any]) -> type[Any]:
    def connect(self: Any) -> _TimedSocket:
        self.socket_connect_timeout = max(_CALL.until - time.monotonic(), SHORTEST_S)
        return _TimedSocket(kind._connect(self))

    return type(f"Timed{kind.__name__}", (kind,), {"_connect": connect})


class RedisBackend:
    """Five verbs as pipelines, thread-safe; deadlines cover connecting, not name resolution."""

    def __init__(self, address: Address, *, password: str = "", timeout_s: float) -> None:
        self.address = str(address)
        options: dict[str, Any] = {
            "db": address.database,
            "protocol": 2,
            "socket_timeout": timeout_s,  # of TLS's handshake, which comes before _TimedSocket
            "socket_read_size": READ_BYTES,
            "retry": Retry(NoBackoff(), 0),
        }
        if address.scheme == "unix":
            options["path"] = address.path
        else:
            options |= {"host": address.host, "port": address.port}
        if password:
            name = address.user or None
            options["credential_provider"] = UsernamePasswordCredentialProvider(name, password)
        kind = _timed(_CLASSES[address.scheme])
        self._pool = ConnectionPool(connection_class=kind, **options)
        self._client = Redis(connection_pool=self._pool)

    def get_many(self, names: Sequence[bytes], *, until: float) -> list[bytes | None]:
        """GET; a value that is no string is returned as b"", so that its reader removes it."""
        answers = self._execute([("GET", name) for name in names], until)
        return [_value(answer) for answer in answers]

    def set_many(self, values: Mapping[bytes, Bytes], *, until: float) -> Kept:
        """SET NX; refused are those that the server answers with an error, such as OOM."""
        commands = [("SET", name, value, "NX") for name, value in values.items()]
        answers = self._execute(commands, until)
        refusals = [answer for answer in answers if isinstance(answer, ResponseError)]
        taken = tuple(not isinstance(answer, ResponseError) for answer in answers)
        return Kept(taken, str(refusals[0]) if refusals else "")

    def exists_many(self, names: Sequence[bytes], *, until: float) -> list[bool]:
        """EXISTS, which leaves the order of eviction alone."""
        answers = self._execute([("EXISTS", name) for name in names], until)
        return [bool(_number(answer)) for answer in answers]

    def delete_many(self, names: Sequence[bytes], *, until: float) -> int:
        """UNLINK, so that the server frees the memory in the background."""
        return sum(map(_number, self._execute([("UNLINK", *names)] if names else [], until)))

    def scan(self, prefix: bytes, *, until: float) -> Iterator[tuple[bytes, int]]:
        """SCAN and STRLEN page by page; names that come and go meanwhile may be missed."""
        pattern = b"".join(b"\\" + bytes([c]) if c in b"*?[]^-\\" else bytes([c]) for c in prefix)
        cursor, seen = b"0", set[bytes]()
        while True:
            command = ("SCAN", cursor, "MATCH", pattern + b"*", "COUNT", PAGE)
            cursor, page = self._ask_once(command, until)
            # A server may name a key twice, for instance while its table grows.
            names = [name for name in dict.fromkeys(page) if name not in seen]
            seen.update(names)
            sizes = self._execute([("STRLEN", name) for name in names], until)
            yield from ((n, s) for n, s in zip(names, sizes, strict=True) if isinstance(s, int))
            if not int(cursor):
                return

    def close(self) -> None:
        """Close the connections; a later call would open new ones."""
        self._pool.disconnect()

    def _ask_once(self, command: tuple[Any, ...], until: float) -> Any:
        (answer,) = self._execute([command], until)
        if isinstance(answer, ResponseError):
            raise BackendDown(str(answer), advice=_advice(answer))
        return answer

    def _execute(self, commands: Sequence[tuple[Any, ...]], until: float) -> list[Any]:
        """Send commands at once and return their answers; an answer may be a ResponseError."""
        if not commands:
            return []
        with _errors(), self._client.pipeline(transaction=False) as pipeline:
            _CALL.until = until
            for command in commands:
                pipeline.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py's
            return list(pipeline.execute(raise_on_error=False))


def _value(answer: object) -> bytes | None:
    if isinstance(answer, ResponseError):
        if str(answer).startswith("WRONGTYPE"):
            return b""
        raise BackendDown(str(answer), advice=_advice(answer))
    assert answer is None or isinstance(answer, bytes)
    return answer


def _number(answer: object) -> int:
    if isinstance(answer, ResponseError):
        raise BackendDown(str(answer), advice=_advice(answer))
    assert isinstance(answer, int)
    return answer


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        raise BackendDown(str(error) or type(error).__name__, advice=_advice(error)) from error


_ADVICE: tuple[tuple[type[Exception], str], ...] = (
    (
        AuthenticationError,
        f"give the right password in {PASSWORD_VARIABLE} or in a file, and the user in the address",
    ),
    (NoPermissionError, "let this user use GET, SET, EXISTS, UNLINK, SCAN and STRLEN"),
    (BusyLoadingError, "wait until the server has read its data"),
    (RedisTimeoutError, "is the server overloaded or stopped? a longer timeout_s waits longer"),
    (InvalidResponse, "is that a Redis or Valkey server?"),
)


def _advice(error: Exception) -> str:
    for kind, advice in _ADVICE:
        if isinstance(error, kind):
            return advice
    if str(error).startswith("NOAUTH"):
        return _ADVICE[0][1]
    if str(error).startswith(("MOVED", "CLUSTERDOWN", "ASK")):
        return "name a server that is not part of a cluster"
    return "start a server there, or name the right one"
