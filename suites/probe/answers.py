"""Answer to one request: text, tokens with their log-probabilities, and counts."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

Trouble: TypeAlias = Literal["refused", "busy", "failed", "dropped", "malformed", "timeout"]
"""Cause of a missing answer. `refused`: 4xx. `busy`: 429 and 5xx but 500. `failed`: 500, or an
error in the place of an answer."""

_MOST = 300
"""Most characters of foreign text in a message."""


class NoAnswer(Exception):
    """A request without an answer; `status` is 0 if none arrived."""

    def __init__(self, trouble: Trouble, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.trouble, self.status = trouble, status


class Token(NamedTuple):
    """One token of an answer."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()
    """(token, log-probability) of the likeliest."""

    def most(self, other: str) -> float:
        """Return the log-probability of `other` at this position, or its upper bound."""
        reported = dict(self.top)
        if other in reported:
            return reported[other]
        known = dict(self.top) | {self.text: self.logprob}
        rest = 1.0 - sum(math.exp(value) for value in known.values())
        bound = math.log(rest) if rest > 1e-12 else -math.inf
        return min([bound, *reported.values()])


class Answer(NamedTuple):
    """A whole answer."""

    text: str
    """All that was generated, the reasoning first."""
    finish: str = ""
    tokens: tuple[Token, ...] = ()
    """Empty if the server returns no log-probabilities."""
    ids: tuple[int, ...] = ()
    """Generated ids; empty unless the server returns them."""
    prompt: int = 0
    """Tokens of the prompt, as the server counted them."""
    cached: int | None = None
    """Prompt tokens found in the cache; None: not reported."""
    odd: str = ""
    """Invalid value in the place of the cached count."""
    content: str = ""
    """Content of a chat's answer: the text without the reasoning."""
    seconds: float = 0.0
    """Time from the request to the whole answer."""

    @property
    def summary(self) -> str:
        """Return one line for people."""
        reported = "" if self.cached is None else f", {self.cached} cached"
        return f"{self.text[:60]!r} ({self.prompt} prompt tokens{reported})"


_FAILED = ("error", "abort")
"""Finish reasons that stand for errors."""
_STRANGE = (ArithmeticError, AttributeError, KeyError, TypeError, ValueError)
"""Exceptions that unexpected JSON can raise."""


def decoded(data: bytes) -> Any:
    """Read JSON of a server. Raises ValueError, also for deep nesting."""
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise ValueError("it nests too deep") from None


def read_answer(data: bytes) -> Answer:
    """Read the body of a completion or chat completion. Raises NoAnswer."""
    body = _body(data)
    if isinstance(body, dict) and body.get("error"):
        raise NoAnswer("failed", f"an error under status 200: {error_text(data)}")
    try:
        answer = _read(body)
    except _STRANGE:
        raise NoAnswer("malformed", f"no completion: {shown(data)}") from None
    if answer.finish in _FAILED:
        reported = f"finish_reason is {answer.finish!r}: {answer.text[:_MOST]}"
        raise NoAnswer("failed", reported)
    return answer


def check_event(data: bytes) -> None:
    """Check an event of a stream. Raises NoAnswer."""
    body = _body(data)
    try:
        choices = body.get("choices") or []
        finished = [each.get("finish_reason") for each in choices]
    except _STRANGE:
        raise NoAnswer("malformed", f"no event of a completion: {shown(data)}") from None
    if any(each in _FAILED for each in finished) or (body.get("error") and not choices):
        raise NoAnswer("failed", f"an error in a stream: {error_text(data)}")


def _body(data: bytes) -> Any:
    try:
        return decoded(data)
    except ValueError:
        raise NoAnswer("malformed", f"no JSON: {shown(data)}") from None


def _read(body: Any) -> Answer:
    (choice,), usage = body["choices"], body.get("usage") or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    message = choice.get("message")
    text = choice["text"] if message is None else _generated(message)
    if not isinstance(text, str | None):
        raise TypeError(text)
    return Answer(
        text=text or "",
        finish=str(choice.get("finish_reason") or ""),
        tokens=_tokens(choice.get("logprobs")),
        ids=tuple(map(int, choice.get("token_ids") or ())),
        prompt=whole(usage.get("prompt_tokens")) or 0,
        cached=whole(cached),
        odd="" if cached is None or whole(cached) is not None else f"{cached!r}"[:_MOST],
        content=str((message or {}).get("content") or ""),
    )


def _generated(message: Any) -> Any:
    """Return the reasoning and the text: a short answer may be all reasoning."""
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    return reasoning + (message.get("content") or "")


def whole(value: object) -> int | None:
    """Return an integer unchanged; None for everything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _tokens(reported: Any) -> tuple[Token, ...]:
    if not reported:
        return ()
    if reported.get("content"):
        return tuple(
            Token(*_entry(each["token"], each["logprob"]), _top_of_chat(each.get("top_logprobs")))
            for each in reported["content"]
        )
    texts, values = reported.get("tokens") or (), reported.get("token_logprobs") or ()
    if any(value is None for value in values):
        return ()
    tops = reported.get("top_logprobs") or [None] * len(texts)
    return tuple(
        Token(*_entry(text, value), tuple(_entry(*each) for each in (top or {}).items()))
        for text, value, top in zip(texts, values, tops, strict=True)
    )


def _top_of_chat(entries: Any) -> tuple[tuple[str, float], ...]:
    return tuple(_entry(each["token"], each["logprob"]) for each in entries or ())


def _entry(text: Any, logprob: Any) -> tuple[str, float]:
    """Return a token; its log-probability is at most 0, also after rounding."""
    value = float(logprob)
    if not isinstance(text, str) or value > 1.0:
        raise ValueError(text, value)
    return text, value


def error_text(data: bytes) -> str:
    """Return the message of an error in OpenAI's shape or FastAPI's, else the raw text."""
    try:
        body = decoded(data)
    except ValueError:
        return shown(data)
    reported = body.get("error", body.get("detail", body)) if isinstance(body, dict) else body
    message = reported.get("message", reported) if isinstance(reported, dict) else reported
    return " ".join(str(message).split())[:_MOST]


def shown(data: bytes) -> str:
    """Return the beginning of foreign bytes."""
    return repr(data[:_MOST].decode(errors="replace"))
