"""Secrets come from the environment or a file; on a command line they are refused.

The list of processes, histories of shells and logs of CI show command lines to others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvproof.harness.errors import UsageError
from kvproof.harness.redaction import has_password, learn, secret_options

_REDIS = "set KVPROOF_REDIS_PASSWORD, or name a file with --{}"
_HINTS = {
    ("serve", "--api-key"): "set KVPROOF_API_KEY, or name a file with --api-key-file",
    ("serve", "--admin-api-key"): (
        "set KVPROOF_ADMIN_API_KEY, or name a file with --admin-api-key-file"
    ),
    ("probe", "--api-key"): "set KVPROOF_PROBE_KEY, or name a file with --api-key-file",
    ("serve", "--remote"): _REDIS.format("remote-secret-file"),
    ("fuzz", "--database"): _REDIS.format("database-secret-file"),
}
"""Verb and option -> the other way to give its secret."""


def refuse_secrets(words: Sequence[str]) -> None:
    """Raise UsageError for a secret in a command; words after `--` are not kvproof's."""
    own = list(words[: words.index("--")] if "--" in words else words)
    verb = own[0] if own else ""
    for option, _ in secret_options(own):
        raise _refusal(f"{option} has a secret", _HINTS.get((verb, option), ""))
    for before, word in zip(["", *own], own, strict=False):
        if has_password(word):
            option, equals, _ = word.partition("=")
            option = option if equals and option.startswith("--") else before
            what = f"{option} has" if option.startswith("--") else "the command has"
            raise _refusal(f"{what} a URL with a password", _HINTS.get((verb, option), ""))


def _refusal(what: str, hint: str) -> UsageError:
    return UsageError(
        f"{what} on the command line, which other users of this machine can read",
        hint or "give it in the environment or in a file",
    )


def read_secret(option: str, path: Path | None) -> str:
    """Return the first line of a file, hidden from now on; no file: empty. Raises UsageError."""
    if path is None:
        return ""
    from kvproof.harness.opening import opened  # a start counts its modules

    try:
        with opened(path) as file:
            secret = file.readline(_LONGEST).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"{option} {str(path)!r} cannot be read: {why}", _FILE) from None
    if not secret:
        raise UsageError(f"{option} {str(path)!r} has an empty first line", _FILE)
    learn(secret)
    return secret


_LONGEST = 4096
_FILE = "a file whose first line is the secret"
