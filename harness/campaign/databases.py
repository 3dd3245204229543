"""Example databases of Hypothesis: a directory, Redis or Valkey, and read-only CI artifacts.

An unreachable database must not look like a failure of the target: its operations are counted, and
skipped until it is back. Its password comes from a file or the environment, never from its URL.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from hypothesis.database import (
    DirectoryBasedExampleDatabase,
    ExampleDatabase,
    GitHubArtifactDatabase,
    MultiplexedDatabase,
    ReadOnlyDatabase,
)

from kvproof.harness.errors import UsageError
from kvproof.harness.records.run_directory import make_folder, remove_new
from kvproof.harness.redaction import has_password

Answer = TypeVar("Answer")

_PAUSE = 1.0
"""Seconds for which a database that did not answer is left alone."""

_TIMEOUT = 2.0
"""Seconds that one operation may take."""

_SCHEMES = ("redis://", "rediss://", "unix://")


PASSWORD_VARIABLE = "KVPROOF_REDIS_PASSWORD"  # noqa: S105 - the name of the variable, no password
_PASSWORD_HINT = f"set {PASSWORD_VARIABLE}, or name a file with --database-secret-file"


def open_database(where: str, artifact: str = "", *, password: str = "") -> WatchedDatabase:
    """Open the database `where`, a directory or a URL of Redis.

    `artifact` is `owner/repository`: the examples of its CI are read too, never written. Raises
    UsageError for an unknown scheme, a password in the URL, or a missing package.
    """
    own = _redis(where, password) if _is_redis(where) else DirectoryBasedExampleDatabase(where)
    if not artifact:
        return WatchedDatabase(own)
    owner, slash, name = artifact.partition("/")
    if not (owner and slash and name) or "/" in name:
        raise UsageError(
            f"campaign.artifact = {artifact!r} is no repository", "for example my-org/my-engine"
        )
    theirs = ReadOnlyDatabase(GitHubArtifactDatabase(owner, name))
    return WatchedDatabase(MultiplexedDatabase(WatchedDatabase(own), theirs))


def why_unreachable(where: str, *, password: str = "") -> str:
    """Return why a database does not answer now; empty: it does.

    Raises UsageError for a directory that cannot be written, and if the server refuses the
    password: it will not take it later either.
    """
    if not _is_redis(where):
        _refuse_unwritable(where)
        return ""
    client = _client(where, password)
    import redis

    try:
        client.ping()
    except redis.RedisError as error:
        if isinstance(error, redis.AuthenticationError) or str(error).startswith("NOAUTH"):
            raise UsageError(
                f"the example database {where!r} refuses the password: {error}", _PASSWORD_HINT
            ) from error
        return str(error) or type(error).__name__
    finally:
        client.close()
    return ""


def _is_redis(where: str) -> bool:
    """Raises UsageError for a URL of anything else, which would become a strange folder."""
    if "://" in where and not where.startswith(_SCHEMES):
        scheme = where.partition("://")[0]
        raise UsageError(
            f"the example database has the unknown scheme {scheme!r}",
            f"a directory, or a URL with {', '.join(_SCHEMES)}",
        )
    return where.startswith(_SCHEMES)


def _refuse_unwritable(where: str) -> None:
    """Hypothesis would go on without its directory, with one warning per example.

    It makes the directory with the first example, so none is left if the command is refused.
    """
    try:
        remove_new(make_folder(Path(where)))
    except OSError as error:
        raise UsageError(
            f"cannot write the example database {where!r}: {error.strerror}",
            "choose another place with --database",
        ) from error


def _redis(url: str, password: str) -> ExampleDatabase:
    client = _client(url, password)
    from hypothesis.extra.redis import RedisExampleDatabase

    return RedisExampleDatabase(client)


def _client(url: str, password: str) -> Any:
    if has_password(url):
        raise UsageError("the URL of the example database has a password in it", _PASSWORD_HINT)
    if find_spec("redis") is None:
        raise UsageError(f"--database {url!r} needs redis-py", "pip install 'kvproof[redis]'")
    import redis

    limits = {"socket_timeout": _TIMEOUT, "socket_connect_timeout": _TIMEOUT}
    try:
        return redis.Redis.from_url(url, password=password or None, **limits)
    except ValueError as error:
        raise UsageError(
            f"--database {url!r}: {error}", "for example redis://host:6379/0"
        ) from error


def for_workers(where: str) -> str:
    """The same place for a worker that was started in another folder."""
    return where if where.startswith(_SCHEMES) else str(Path(where).resolve())


class WatchedDatabase(ExampleDatabase):
    """Counts operations, and survives a server that is away."""

    def __init__(self, inner: ExampleDatabase) -> None:
        super().__init__()
        self._inner = inner
        self._silent = 0.0
        self.operations: Counter[str] = Counter()
        """Kind -> how many; `unreachable` counts those that failed or were left out."""

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """All values of a key; none while the database is away."""
        return self._do("fetch", lambda: list(self._inner.fetch(key)), [])

    def save(self, key: bytes, value: bytes) -> None:
        """Add a value."""
        self._do("save", lambda: self._inner.save(key, value), None)

    def delete(self, key: bytes, value: bytes) -> None:
        """Remove a value."""
        self._do("delete", lambda: self._inner.delete(key, value), None)

    def move(self, src: bytes, dest: bytes, value: bytes) -> None:
        """Remove a value from one key and add it to another."""
        self._do("move", lambda: self._inner.move(src, dest, value), None)

    def _do(self, kind: str, work: Callable[[], Answer], otherwise: Answer) -> Answer:
        self.operations[kind] += 1
        if time.monotonic() < self._silent:
            self.operations["unreachable"] += 1
            return otherwise
        try:
            return work()
        except Exception:  # noqa: BLE001 - of a client that is not installed everywhere
            self.operations["unreachable"] += 1
            self._silent = time.monotonic() + _PAUSE
            return otherwise
