"""Servers of a run: their configurations, and what each of them can do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from kvproof.eval.divergence.chats import opening
from kvproof.eval.divergence.forced import Unanswered, answered
from kvproof.eval.divergence.scenes import ROOM
from kvproof.eval.run.config import Configuration, EvalConfig, Protocol, Server
from kvproof.eval.run.records import Abilities
from kvproof.harness.errors import UsageError
from kvproof.harness.http.completion_client import CompletionClient, Reply
from kvproof.harness.served.counters import Figures, figures, means
from kvproof.harness.served.documented import UNKNOWN, request_fields
from kvproof.harness.served.situations import Means


class _Models(msgspec.Struct):
    """The list of models of an OpenAI server."""

    data: list[dict[str, Any]] = []


_TOPS = (20, 5, 1, 0)
"""Likeliest tokens to ask for; servers allow at most some."""


def from_urls(
    judged: str, recompute: str, controls: Sequence[str], server: Server, *, model: str = ""
) -> EvalConfig:
    """Return the configurations of running servers; `server` has their common settings."""

    def at(name: str, url: str, *, cache: bool) -> Configuration:
        return Configuration(name=name, prefix_cache=cache, server=replace(server, base_url=url))

    rest = [at(f"control {n}", url, cache=False) for n, url in enumerate(controls, 1)]
    base = at("recomputed", recompute or judged, cache=False)
    return EvalConfig(model=model, configuration=(base, *rest, at("hit", judged, cache=True)))


def as_asked(config: EvalConfig) -> EvalConfig:
    """Return the settings of the requests: greedy, once, and never tried again, which would hit."""
    protocol = Protocol(timeout=config.protocol.timeout, retries=0, stream=False)
    return replace(config, protocol=protocol)


def learned(client: CompletionClient) -> Abilities:
    """Try some requests of one token to learn a server's options. Raises UsageError."""
    _completes(client)
    top = _likeliest(client)

    def taken(**fields: object) -> Reply | None:
        scored = {} if top is None else {"logprobs": top}
        found = client.complete("a", max_tokens=1, **scored, **fields)
        return found if found.outcome == "answered" else None

    ids = taken(return_token_ids=True)
    salt = taken(cache_salt="kvproof") is not None
    return Abilities(
        top=top,
        token_ids=bool(ids and ids.prompt_ids),
        ignore_eos=taken(ignore_eos=True) is not None,
        salt=salt,
        salt_documented=salt and _documents(client, taken),
        adapters=tuple(name for name in _adapters(client) if taken(model=name)),
        opening=0 if top is None else opening(client, top),
    )


def _completes(client: CompletionClient) -> None:
    """Raise UsageError without an answer; a token may be no text: part of a letter, or special."""
    try:
        answered(client.complete("a", max_tokens=1))
    except Unanswered as error:
        if error.reply.outcome == "empty":
            return
        raise UsageError(
            f"{client.url} completes nothing: {error}",
            "a server with /v1/completions; --model names its model",
        ) from error


def _likeliest(client: CompletionClient) -> int | None:
    """Return for how many of the likeliest tokens the server gives log-probabilities."""
    asked = ((top, client.complete("a", max_tokens=1, logprobs=top)) for top in _TOPS)
    return next((top for top, found in asked if found.logprobs), None)


def _documents(client: CompletionClient, taken: Callable[..., Reply | None]) -> bool:
    """Return whether the server knows `cache_salt`, instead of taking any field."""
    with suppress(OSError, msgspec.MsgspecError):
        document = msgspec.json.decode(client.get("/openapi.json"))
        if fields := request_fields(document, "/v1/completions"):
            return "cache_salt" in fields
    return taken(**{UNKNOWN: True}) is None


TRIED = (1_400, 8_900, 33_500)
"""Tokens of prompts that show how long they may be."""

_OF_LENGTH: tuple[Means, ...] = ("1k", "8k", "32k")

MOST_ADAPTERS = 2
"""Adapters that are asked: an entry of one must not be hit by the other."""

MOST_LONG = 40_000
"""Tokens of the longest prompt that is sent because it is the longest."""


def longest_prompt(client: CompletionClient, answers: Callable[[int], bool], *, least: int) -> int:
    """Return tokens of the longest prompt with its answer: tried, at most as reported.

    A small pool may allow less than the model does. `answers`: whether it takes so many tokens.
    """
    reported, found = _reported_limit(client), least
    for length in TRIED:
        if reported and length + ROOM > reported:
            break
        if not answers(length):
            return found
        found = length
    if not reported or reported > MOST_LONG:
        return reported or found
    return reported if answers(reported - ROOM) else found


def means_of(
    client: CompletionClient, able_to: Abilities, orders: Iterable[Means], *, longest: int
) -> tuple[Means, ...]:
    """Return what situations can be brought about with.

    `orders`: those that the server takes; `longest`: tokens of a prompt.
    """
    able: dict[Means, bool] = {
        "salt": able_to.salt,
        "adapter": bool(able_to.adapters),
        "image": able_to.opening > 0,
        **dict.fromkeys(orders, True),
        "longest": TRIED[0] < longest <= MOST_LONG,
        "pool": True,
    }
    able |= {name: longest >= least for name, least in zip(_OF_LENGTH, TRIED, strict=True)}
    return (*(name for name, has in able.items() if has), *means(counters_of(client)))


def counters_of(client: CompletionClient) -> Figures:
    """Return the figures of `/metrics`; none where there is no such page."""
    try:
        return figures(client.get("/metrics").decode(errors="replace"))
    except OSError:
        return {}


def _reported_limit(client: CompletionClient) -> int:
    """Return `max_model_len` of the first model; 0 where it is not reported."""
    found = next(iter(_models(client)), {}).get("max_model_len")
    return found if isinstance(found, int) else 0


def _adapters(client: CompletionClient) -> list[str]:
    """Return some adapters of the models, by the field `parent` that engines report."""
    found = [each for each in _models(client) if isinstance(each.get("id"), str)]
    names = {each["id"] for each in found}
    return [each["id"] for each in found if each.get("parent") in names][:MOST_ADAPTERS]


def _models(client: CompletionClient) -> list[dict[str, Any]]:
    with suppress(OSError, msgspec.MsgspecError):
        found = msgspec.json.decode(client.get("/v1/models"), type=_Models)
        return found.data
    return []
