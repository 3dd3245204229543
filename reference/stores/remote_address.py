"""Where a Redis or Valkey server is, and the password for it, which is in no address."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kvproof.reference.core.secret_file import first_line
from kvproof.reference.core.validation import ConfigError, require

PASSWORD_VARIABLE = "KVPROOF_REDIS_PASSWORD"  # noqa: S105 - the name of the variable, no password
LONGEST_PASSWORD = 4096
"""Characters that are read from a file."""
SCHEMES = ("redis", "rediss", "unix")
EXAMPLE = "redis://127.0.0.1:6379/0"
PORT = 6379
_RULE = "redis://[user@]host[:port][/database], rediss://... for TLS, or unix:///path[?db=1]"


@dataclass(frozen=True)
class Address:
    """A parsed address; `str` gives one without secrets, since it has none."""

    scheme: str
    host: str = ""
    port: int = PORT
    path: str = ""
    """Path of the socket of `unix`."""
    database: int = 0
    user: str = ""

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        if self.scheme == "unix":
            return f"unix://{user}{self.path}?db={self.database}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{user}{host}:{self.port}/{self.database}"


def parse(url: str) -> Address:
    """Read an address. Raises ConfigError, also for a password in it, which is not repeated."""
    try:
        parts = urlsplit(url)
        port, password = parts.port, parts.password
    except ValueError:
        # The parser's message may hold a piece of a password that has an unescaped / in it.
        raise ConfigError(f"the address must be {_RULE}, for example {EXAMPLE!r}") from None
    if password is not None:
        raise ConfigError(
            f"the address of {parts.hostname or parts.path!r} must hold no password: give it in "
            f"the variable {PASSWORD_VARIABLE} or in a file that password_file names"
        )
    url = without_secrets(url)
    require(parts.scheme in SCHEMES, "url", url, _RULE, EXAMPLE)
    user = unquote(parts.username or "")
    if parts.scheme == "unix":
        return _of_socket(url, unquote(parts.path), parts.query, user)
    require(bool(parts.hostname) and not parts.query, "url", url, _RULE, EXAMPLE)
    number = _database(url, parts.path.removeprefix("/"))
    host = parts.hostname or ""
    return Address(parts.scheme, host, PORT if port is None else port, "", number, user)


def without_secrets(url: str) -> str:
    """Return the part of a URL, up to the first possible password, that messages may repeat."""
    before, at, place = url.rpartition("@")
    place, mark, query = place.partition("?")
    if not re.fullmatch(r"(db|timeout)=[^&]*", query):
        query = query and "..."
    scheme, colons, _ = before.partition("://")
    start = f"{scheme}://...@" if colons else "...@"
    return f"{start if at else ''}{place}{mark}{query}"


def _of_socket(url: str, path: str, query: str, user: str) -> Address:
    name, _, value = query.partition("=")
    good = path.startswith("/") and name in ("", "db")
    require(good, "url", url, _RULE, "unix:///run/redis.sock?db=0")
    return Address("unix", path=path, database=_database(url, value), user=user)


def _database(url: str, text: str) -> int:
    good = text == "" or (text.isascii() and text.isdecimal())
    require(good, "url", url, "an address with a number as database", EXAMPLE)
    return int(text or 0)


def password(file: str | Path = "") -> str:
    """Read the password from a file, else the environment; empty: none. Raises ConfigError."""
    if not file:
        return os.environ.get(PASSWORD_VARIABLE, "")
    try:
        _, line = first_line(Path(file), LONGEST_PASSWORD)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        raise ConfigError(f"password_file {str(file)!r} cannot be read: {why}") from None
    if not (text := line.strip()):
        raise ConfigError(f"password_file {str(file)!r} is empty; it must hold the password")
    return text
