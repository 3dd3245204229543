"""Where a cache server listens, and that it is the only one there (G8)."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from kvproof.reference.cache_server.messages import MOST_TOKEN
from kvproof.reference.core.secret_file import first_line

LEAST_TOKEN = 16
"""Characters."""


class AddressError(ValueError):
    """An address or a token is not usable; the message gives the rule."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        """A command that helps; empty: the message has the example."""


class Address(NamedTuple):
    """A socket of this machine's users, or of a network."""

    url: str
    path: Path | None
    """Path of the socket's file."""
    local: bool
    """The address is not reachable from another machine."""


def default_address() -> str:
    """Return the address of the user's own server: in a folder that only the user may enter.

    Never below /tmp, where others could make a folder of that name first.
    """
    folder = os.environ.get("XDG_RUNTIME_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    where = Path(folder) if folder else Path(cache).expanduser() / "kvproof"
    return f"ipc://{where / 'kvproof-cache.sock'}"


def check_owner(path: Path) -> None:
    """Refuse a socket that another user may have made: a token would go to a stranger.

    `path` and its folder must belong to this user or root, and others must not be able to write
    into the folder. A socket that is not there yet passes. Raises AddressError.
    """
    _check_folder(path.parent)
    with suppress(FileNotFoundError):
        found = path.lstat()
        if not stat.S_ISSOCK(found.st_mode):
            raise AddressError(f"{str(path)!r} is no socket")
        if found.st_uid not in (os.getuid(), 0):
            raise AddressError(f"the socket {str(path)!r} belongs to another user")
        if found.st_mode & stat.S_IWOTH:
            raise AddressError(f"the socket {str(path)!r} is open to other users", f"rm {path}")


def _check_folder(folder: Path) -> None:
    try:
        found = folder.stat()
    except OSError as error:
        raise AddressError(f"the folder {str(folder)!r} cannot be used: {error.strerror}") from None
    if found.st_uid not in (os.getuid(), 0):
        raise AddressError(f"the folder {str(folder)!r} belongs to another user")
    theirs = found.st_mode & stat.S_IWGRP and found.st_gid not in (os.getgid(), 0)
    if found.st_mode & stat.S_IWOTH or theirs:
        raise AddressError(
            f"other users can write to the folder {str(folder)!r} and put a server of theirs there",
            f"use a folder of your own, for example: mkdir -m 700 {folder / 'kvproof'}",
        )


def parse(text: str) -> Address:
    """Return an address. Raises AddressError with the value and a legal example."""
    kind, _, rest = text.partition("://")
    if kind == "ipc" and rest.startswith("/") and len(os.fsencode(rest)) <= 100:
        return Address(text, Path(rest), local=True)
    if kind == "tcp":
        return Address(text, None, local=_is_loopback(text))
    raise AddressError(
        f"address {text!r} must be ipc:// and an absolute path of at most 100 bytes, or "
        "tcp://host:port, for example ipc:///run/kvproof/cache.sock or tcp://127.0.0.1:7070"
    )


def read_token(path: Path) -> str:
    """Return the first line of a file that its owner alone can read. Raises AddressError."""
    try:
        mode, line = first_line(path, 4 * MOST_TOKEN)
    except (OSError, UnicodeDecodeError) as error:
        advice = f"for example: (umask 077; openssl rand -hex 32 > {path})"
        raise AddressError(f"cannot read the token in {str(path)!r}: {error}", advice) from None
    token = line.strip()
    if mode & 0o077:
        raise AddressError(f"{str(path)!r} is open to other users", f"chmod 600 {path}")
    if not LEAST_TOKEN <= len(token) <= MOST_TOKEN:
        raise AddressError(
            f"the token in {str(path)!r} has {len(token)} characters, not {LEAST_TOKEN} to "
            f"{MOST_TOKEN}",
            f"for example: openssl rand -hex 32 > {path}",
        )
    return token


def is_ipv6(text: str) -> bool:
    """Return whether an address is one of IPv6, which ZeroMQ must enable."""
    return text.startswith("tcp://[")


def _is_loopback(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port, host = parts.port, ipaddress.ip_address(parts.hostname or "")
    except ValueError:
        port = None
    if port is None:
        raise AddressError(
            f"address {text!r} must have the number of a host and a port, for example "
            "tcp://127.0.0.1:7070"
        )
    return host.is_loopback


class Claim:
    """The right to listen at an address: ZeroMQ would silently take it from a running server.

    Raises AddressError if another server has it. The lock ends with the process, however it ends.
    """

    def __init__(self, address: Address) -> None:
        self._address, self._descriptor = address, -1

    def __enter__(self) -> Self:
        path = self._address.path
        if path is not None:
            try:
                self._descriptor = self._lock(path)
            except OSError as error:
                raise AddressError(
                    f"cannot listen at {self._address.url}: {error.strerror}"
                ) from error
        return self

    def _lock(self, path: Path) -> int:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_folder(path.parent)
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise AddressError(f"another cache server listens at {self._address.url}") from None
        return descriptor

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._address.path is not None:
            self._address.path.unlink(missing_ok=True)
            os.close(self._descriptor)
