"""An answer of a completion, of a chat or of a text, as events or as one JSON object."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

Outcome: TypeAlias = Literal[
    "answered", "refused", "server_error", "timeout", "dropped", "empty", "malformed"
]
"""Result of a request after its last try; only an answered one can be right."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens as the server counted them; None where it reports no count."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    problem: str = ""
    """Why a count was not believed."""


class Chance(NamedTuple):
    """The token at one place of an answer, and the likeliest ones there.

    Names of tokens are the server's; log-probabilities are natural ones. `logprob` is None where
    the server gives none.
    """

    token: str
    logprob: float | None = None
    top: tuple[tuple[str, float], ...] = ()


class Malformed(ValueError):
    """The body is no completion."""

    outcome: Outcome = "malformed"


class ErrorInstead(Malformed):
    """An error under a status, or in a stream that promised an answer."""

    outcome: Outcome = "server_error"


class Chunk(NamedTuple):
    """Content of one event."""

    text: str = ""
    finish_reason: str = ""
    usage: Usage | None = None
    logprobs: tuple[float, ...] = ()
    last: bool = False
    tokens: tuple[Chance, ...] = ()
    """Tokens of the answer: with their scores; of a text's completion without scores its ids, else
    its characters."""
    ids: tuple[int, ...] = ()
    prompt_ids: tuple[int, ...] = ()


def parse_event(data: bytes, part: str = "delta") -> Chunk:
    """Read the data of one event of a stream. Raises Malformed."""
    data = data.strip()
    return Chunk(last=True) if data == b"[DONE]" else parse_completion(data, part)


def parse_completion(data: bytes, part: str = "message") -> Chunk:
    """Read a completion of a chat, or with `delta` one chunk of it; with `text`, of a text.

    Raises Malformed.
    """
    try:
        return _parsed(data, part)
    except RecursionError as error:
        raise Malformed(f"nested too deeply: {_shown(data)}") from error


def _parsed(data: bytes, part: str) -> Chunk:
    try:
        body = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"not JSON: {_shown(data)}") from error
    if not isinstance(body, dict):
        raise Malformed(f"not a JSON object: {_shown(data)}")
    if body.get("error"):
        raise ErrorInstead(f"an error instead of an answer: {_message(body['error'])}")
    choices = body.get("choices")
    if not isinstance(choices, list) or not (choices or part != "message"):
        raise Malformed(f"there is no list of choices: {_shown(data)}")
    usage = read_usage(body.get("usage"))
    if not choices:
        return Chunk(usage=usage)
    if part == "text":
        return _with_text(choices[0], body, usage)
    return _with_choice(choices[0], part, usage)


def _with_choice(choice: Any, part: str, usage: Usage | None) -> Chunk:
    message = choice.get(part) if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise Malformed(f"a choice has no {part}")
    text = message.get("content") or ""
    if not isinstance(text, str):
        raise Malformed(f"the content is no text: {_shown(str(text).encode())}")
    reason = str(choice.get("finish_reason") or "")
    scores = choice.get("logprobs")
    return Chunk(text, reason, usage, _logprobs(scores), tokens=_scored(scores))


def _with_text(choice: Any, body: dict[str, Any], usage: Usage | None) -> Chunk:
    try:
        text, ids = choice["text"], _ids(choice.get("token_ids"))
        tokens = _chances(choice.get("logprobs"))
        prompt_ids = _ids(choice.get("prompt_token_ids") or body.get("prompt_token_ids"))
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        shown = _shown(msgspec.json.encode(body))
        raise Malformed(f"no completion ({type(error).__name__}: {error}): {shown}") from error
    if not isinstance(text, str):
        raise Malformed(f"the text of a completion is {_shown(str(text).encode())}")
    logprobs = tuple(each.logprob for each in tokens if each.logprob is not None)
    tokens = tokens or tuple(Chance(str(each)) for each in ids) or tuple(map(Chance, text))
    reason = str(choice.get("finish_reason") or "")
    return Chunk(text, reason, usage, logprobs, tokens=tokens, ids=ids, prompt_ids=prompt_ids)


def _ids(value: Any) -> tuple[int, ...]:
    found = value if isinstance(value, list) else ()
    return tuple(each for each in found if isinstance(each, int))


def _chances(value: Any) -> tuple[Chance, ...]:
    if not isinstance(value, dict) or not value.get("tokens"):
        return ()
    tops = value.get("top_logprobs") or [None] * len(value["tokens"])
    return tuple(
        Chance(str(token), None if logprob is None else float(logprob), _top(top))
        for token, logprob, top in zip(value["tokens"], value["token_logprobs"], tops, strict=True)
    )


def _top(value: Any) -> tuple[tuple[str, float], ...]:
    listed = value.items() if isinstance(value, dict) else ()
    return tuple((str(token), float(logprob)) for token, logprob in listed if logprob is not None)


def _logprobs(value: Any) -> tuple[float, ...]:
    """Of the tokens of this part; empty if the server does not report them."""
    content = value.get("content") if isinstance(value, dict) else None
    entries = content if isinstance(content, list) else []
    found = [_logprob(each.get("logprob") if isinstance(each, dict) else None) for each in entries]
    known = tuple(each for each in found if each is not None)
    return known if len(known) == len(found) else ()


def _scored(value: Any) -> tuple[Chance, ...]:
    """Places of this part of a chat; empty if one of them has no score."""
    try:
        return tuple(
            Chance(str(each["token"]), float(each["logprob"]), _top(_named(each["top_logprobs"])))
            for each in value["content"]
        )
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError):
        return ()


def _named(value: Any) -> dict[str, Any]:
    return {str(each["token"]): each["logprob"] for each in value}


def _logprob(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with suppress(OverflowError):
        return float(value)
    return None


def read_usage(value: Any) -> Usage | None:
    """The server's token counts. An impossible count is left out, with the reason."""
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    found = details.get("cached_tokens") if isinstance(details, dict) else None
    prompt, completion = value.get("prompt_tokens"), value.get("completion_tokens")
    problem = _problem(found, prompt)
    return Usage(
        prompt_tokens=_count(prompt),
        completion_tokens=_count(completion),
        cached_tokens=None if problem else _count(found),
        problem=problem,
    )


def _problem(cached: object, prompt: object) -> str:
    if cached is None:
        return ""
    if _count(cached) is None:
        return f"cached_tokens is {cached!r}, no count"
    total = _count(prompt)
    if total is not None and total < int(str(cached)):
        return f"{cached} cached tokens of a prompt of {total}"
    return ""


def _count(value: object) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if isinstance(value, int) and whole and value >= 0 else None


def _message(error: object) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)[:_MOST]


_MOST = 300
"""Characters of foreign text in a message."""


def _shown(data: bytes) -> str:
    return repr(data[:_MOST].decode(errors="replace"))
