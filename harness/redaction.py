"""Secrets stay out of all output: one function, in front of every writer.

A secret is known because an option, a file or a variable of the environment gave it (`learn`), or
because it stands where secrets stand: as the password of a URL. Console, records, reports and
error messages pass through `redacted`, so a secret in the message of a client library is hidden
too. Needs only the standard library.
"""

from __future__ import annotations

import html
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar
from urllib.parse import quote

HIDDEN = "***"
"""Stands for a secret; has no meaning in JSON and HTML."""
SHORTEST = 6
"""Characters; a shorter secret is hidden in URLs only, or ordinary words would go with it."""

T = TypeVar("T")

_URL = re.compile(r"(?P<start>://[^\s/@:\"'<>]*):(?P<password>[^\s\"'<>]*)@")
_NAME = r"(?:api[-_]?key|access[-_]?key|probe[-_]?key|password|passwd|secret|token)"
_QUERY = re.compile(rf"(?P<start>[?&](?:\w+_)?{_NAME}=)(?P<password>[^&\s\"'<>]+)", re.IGNORECASE)
_OPTION = re.compile(rf"--(?:[\w-]+[-_])?{_NAME}", re.IGNORECASE)
_VARIABLE = re.compile(rf"(?:\w+_)?{_NAME}", re.IGNORECASE)
_known: set[str] = set()


def begin(words: Sequence[str], variables: Mapping[str, str]) -> None:
    """Forget all secrets, and hide those of one command and its environment."""
    _known.clear()
    learn_command(words)
    learn_environment(variables)


def learn(*secrets: str) -> None:
    """Hide these from now on, in every form in which writers put text."""
    _known.update(secret for secret in secrets if len(secret) >= SHORTEST)
    _pattern.cache_clear()


def learn_environment(variables: Mapping[str, str]) -> None:
    """Hide the values of variables whose names end like PASSWORD, TOKEN, SECRET or API_KEY."""
    learn(*(value for name, value in variables.items() if _VARIABLE.fullmatch(name)))


def learn_command(words: Sequence[str]) -> None:
    """Hide the secrets on a command line: passwords of URLs, values of options such as --token."""
    for pattern in (_URL, _QUERY):
        learn(*(found["password"] for word in words for found in pattern.finditer(word)))
    learn(*(value for _, value in secret_options(words)))


def secret_options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options with a secret, and the secret, for `--token X` and `--token=X`."""
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if _OPTION.fullmatch(name) and (value if equals else following):
            yield name, value if equals else following


def has_password(text: str) -> bool:
    """Whether a text has a URL with a password in it."""
    return "://" in text and bool(_URL.search(text) or _QUERY.search(text))


def redacted(text: str) -> str:
    """Return a text without secrets."""
    if "://" in text:
        text = _QUERY.sub(rf"\g<start>{HIDDEN}", _URL.sub(rf"\g<start>:{HIDDEN}@", text))
    pattern = _pattern()
    return pattern.sub(HIDDEN, text) if pattern else text


def redacted_bytes(data: bytes) -> bytes:
    """Return a file's content without secrets."""
    if not _known and b"://" not in data:
        return data
    text = data.decode("utf-8", "surrogateescape")
    return redacted(text).encode("utf-8", "surrogateescape")


def redacted_tree(value: T) -> T:
    """Return lists, dicts and strings without secrets; values of secret names are hidden whole."""
    return _tree(value)  # type: ignore[no-any-return]  # of the same shape


def _tree(value: Any) -> Any:
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {key: _entry(str(key), each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_tree(each) for each in value)
    return value


def _entry(name: str, value: Any) -> Any:
    secret = isinstance(value, str) and value and _VARIABLE.fullmatch(name)
    return HIDDEN if secret else _tree(value)


@lru_cache(maxsize=1)
def _pattern() -> re.Pattern[str] | None:
    forms = {form for secret in _known for form in _forms(secret)}
    longest_first = sorted(forms, key=lambda form: (-len(form), form))
    return re.compile("|".join(map(re.escape, longest_first))) if forms else None


def _forms(secret: str) -> set[str]:
    """As it is, and as URLs, JSON, Python, HTML and a shell write it."""
    written = (
        secret, quote(secret, safe=""), quote(secret), json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1], html.escape(secret),
        shlex.quote(secret),
    )  # fmt: skip
    return {form for form in written if len(form) >= SHORTEST}


learn_environment(os.environ)
