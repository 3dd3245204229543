"""Opens the store below the tiers by its URL: Redis or Valkey, or a cache server (H6, G8).

| URL | store | package |
| --- | --- | --- |
| redis://, rediss://, unix:// | Redis or Valkey, shared by hosts | kvproof[redis] |
| ipc://, tcp:// | a cache server, shared by the processes of one host | kvproof[server] |
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeAlias

from kvproof.reference.cache_server.address import AddressError, read_token
from kvproof.reference.cache_server.address import parse as parse_cache_server
from kvproof.reference.core.validation import ConfigError
from kvproof.reference.stores.object_store import ObjectStore, StoreUnavailable
from kvproof.reference.stores.remote_address import SCHEMES as REDIS
from kvproof.reference.stores.remote_address import without_secrets

CACHE_SERVER = ("ipc", "tcp")
OnMap: TypeAlias = Callable[[memoryview], object]
EXAMPLES = "redis://127.0.0.1:6379/0 or ipc:///run/kvproof/cache.sock"


class RemoteObjects(ObjectStore, Protocol):
    """A store with a connection."""

    def close(self) -> None:
        """Close the connection; the objects stay."""


def open_remote(
    url: str, *, weights: str, secret_file: str | Path = "", on_map: OnMap | None = None
) -> RemoteObjects:
    """Connect to a store and wait for its first answer.

    Args:
        url: See the table above. It holds no password: logs and process lists show URLs.
        weights: Name of the weights; the namespace of a cache server's objects.
        secret_file: Holds the password of Redis or the token of the cache server.
        on_map: Called with the memory of a cache server when it is mapped; see its `connect`.

    Raises:
        ConfigError: The URL is wrong, a package is missing, or the store does not answer. The
            message repeats no secret.

    """
    scheme = url.partition("://")[0]
    if scheme in REDIS:
        return _redis(url, secret_file)
    if scheme in CACHE_SERVER:
        return _cache_server(url, secret_file, weights, on_map)
    schemes = ", ".join(f"{each}://" for each in (*REDIS, *CACHE_SERVER))
    raise ConfigError(
        f"remote {without_secrets(url)!r} must begin with one of {schemes}, for example {EXAMPLES}"
    )


def _redis(url: str, password_file: str | Path) -> RemoteObjects:
    from kvproof.reference.stores.remote_store import RemoteUnusable, connect

    try:
        return connect(url, password_file=password_file)
    except RemoteUnusable as error:
        raise ConfigError(f"remote: {error}") from None


def _cache_server(
    url: str, token_file: str | Path, namespace: str, on_map: OnMap | None
) -> RemoteObjects:
    if "@" in url:
        raise ConfigError(
            f"remote {without_secrets(url)!r} must have no user and no password: give the token "
            "in a file"
        )
    try:
        parse_cache_server(url)
        token = read_token(Path(token_file)) if token_file else ""
        from kvproof.reference.cache_server.client import connect
        from kvproof.reference.cache_server.connection import as_mapped

        client = connect(url, token=token, namespace=namespace, on_map=on_map or as_mapped)
    except AddressError as error:
        raise ConfigError(f"remote: {error}") from None
    except ImportError:
        raise ConfigError(
            f"remote {url!r} needs ZeroMQ, which is not installed: pip install 'kvproof[server]'"
        ) from None
    try:
        client.heartbeat()
    except StoreUnavailable as error:
        client.close()
        raise ConfigError(f"remote: {error}") from None
    return client
