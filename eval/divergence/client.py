"""A client of `/v1/completions` that reads tokens with their log-probabilities."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from kvproof.eval.divergence.distributions import Chance
from kvproof.harness.errors import UsageError
from kvproof.harness.http.chat_completion import Usage, read_usage
from kvproof.harness.http.client import HttpClient, in_words
from kvproof.harness.http.response import TooLong

Prompt: TypeAlias = "str | tuple[int, ...]"
"""A text, or token ids."""

_MOST = 300
"""Characters of a server's message."""

_TOPS = (20, 5, 1, 0)
"""Likeliest tokens to ask for; servers allow at most some."""


class Refused(Exception):
    """The server did not answer as a completion server does; the text has its words."""


class Answer(NamedTuple):
    """One completion."""

    tokens: tuple[Chance, ...]
    text: str
    ids: tuple[int, ...]
    """Token ids of the answer; empty where the server gives none."""
    prompt_ids: tuple[int, ...]
    usage: Usage


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """Options that a server accepts beyond a plain completion."""

    top: int | None
    """Likeliest tokens in each place; None without log-probabilities."""
    token_ids: bool
    """`return_token_ids` gives the ids of prompt and answer."""
    ignore_eos: bool
    salt: bool
    """`cache_salt` is accepted: a request can be recomputed while its blocks stay cached."""


class CompletionClient:
    """Asks one server, from any number of threads. Raises Refused, or UsageError for the URL."""

    def __init__(
        self, url: str, *, model: str, key: str = "", reset: str = "", timeout: float = 600.0
    ) -> None:
        """`reset`: path of a POST that empties the cache."""
        self._http = HttpClient(url, key=key, timeout=timeout)
        self.model, self.url, self._reset = model, url, reset
        self.abilities = Abilities(top=None, token_ids=False, ignore_eos=False, salt=False)

    def learn(self) -> Abilities:
        """Try some requests of one token to learn the server's options. Raises UsageError."""
        try:
            self._post({"prompt": "a", "max_tokens": 1})
        except Refused as error:
            raise UsageError(
                f"{self.url} completes nothing: {error}",
                "a server with /v1/completions; --model names its model",
            ) from error
        self.abilities = Abilities(
            top=next((top for top in _TOPS if self._takes(logprobs=top)), None),
            token_ids=self._takes(return_token_ids=True) and bool(self._ids()),
            ignore_eos=self._takes(ignore_eos=True),
            salt=self._takes(cache_salt="kvproof"),
        )
        return self.abilities

    def _takes(self, **field: Any) -> bool:
        try:
            answer = self._post({"prompt": "a", "max_tokens": 1, **field})
        except Refused:
            return False
        scored = any(each.logprob is not None for each in answer.tokens)
        return scored or "logprobs" not in field

    def _ids(self) -> tuple[int, ...]:
        asked = {"prompt": "a", "max_tokens": 1, "return_token_ids": True}
        return self._post(asked).prompt_ids

    def ask(self, prompt: Prompt, *, tokens: int, salt: str = "") -> Answer:
        """Complete greedily; a `salt` keeps cached blocks of other salts out of reach."""
        able = self.abilities
        fields: dict[str, Any] = {"prompt": prompt, "max_tokens": tokens, "temperature": 0}
        if able.top is not None:
            fields["logprobs"] = able.top
        if able.token_ids:
            fields["return_token_ids"] = True
        if able.ignore_eos:
            fields["ignore_eos"] = True
        if salt:
            fields["cache_salt"] = salt
        return self._post(fields)

    @property
    def can_reset(self) -> bool:
        """Whether the cache can be emptied."""
        return bool(self._reset)

    def empty(self) -> None:
        """Empty the cache by a POST. Raises UsageError."""
        try:
            self._http.post(self._reset)
        except OSError as error:
            raise UsageError(f"--reset: {error}", "for example --reset /reset_prefix_cache") from (
                error
            )

    def _post(self, fields: dict[str, Any]) -> Answer:
        body = msgspec.json.encode({"model": self.model, **fields})
        try:
            with self._http.exchange("POST", "/completions", body) as response:
                data = b"".join(response.pieces())
                if response.status >= 300:
                    text = " ".join(data[:_MOST].decode(errors="replace").split())
                    raise Refused(f"{response.status} {text}")
        except (OSError, http.client.HTTPException, TooLong) as error:
            raise Refused(in_words(error)) from error
        return parse(data)


def parse(data: bytes) -> Answer:
    """Read a completion. Raises Refused."""
    try:
        body = msgspec.json.decode(data)
        choice = body["choices"][0]
        text, ids = choice["text"], _whole(choice.get("token_ids"))
        tokens = _chances(choice.get("logprobs"))
        prompt_ids = _whole(choice.get("prompt_token_ids") or body.get("prompt_token_ids"))
    except (msgspec.MsgspecError, LookupError, TypeError, AttributeError, ValueError) as error:
        shown = data[:_MOST].decode(errors="replace")
        raise Refused(f"no completion ({type(error).__name__}: {error}): {shown!r}") from error
    if not isinstance(text, str):
        raise Refused(f"the text of a completion is {text!r:.{_MOST}}")
    if not tokens:
        tokens = tuple(Chance(str(each)) for each in ids) or tuple(map(Chance, text))
    return Answer(tokens, text, ids, prompt_ids, read_usage(body.get("usage")) or Usage())


def _whole(value: Any) -> tuple[int, ...]:
    found = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    return tuple(each for each in found if isinstance(each, int))


def _chances(value: Any) -> tuple[Chance, ...]:
    if not isinstance(value, dict) or not value.get("tokens"):
        return ()
    tops = value.get("top_logprobs") or [None] * len(value["tokens"])
    return tuple(
        Chance(str(token), _number(logprob), _top(top))
        for token, logprob, top in zip(value["tokens"], value["token_logprobs"], tops, strict=True)
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _top(value: Any) -> tuple[tuple[str, float], ...]:
    listed = value.items() if isinstance(value, dict) else ()
    return tuple((str(token), float(logprob)) for token, logprob in listed if logprob is not None)
