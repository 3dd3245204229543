"""A client of completions: every request ends in one `Reply`, for any server behaviour."""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from kvproof.harness.http.client import Aborted, HttpClient, in_words
from kvproof.harness.http.completion import (
    Chance,
    Chunk,
    Malformed,
    Outcome,
    Usage,
    parse_completion,
    parse_event,
)
from kvproof.harness.http.response import Response, TooLong

Prompt: TypeAlias = "str | tuple[int, ...]"
"""A text to continue, or token ids."""

_MOST_WAIT = 8.0
"""Seconds between two tries at most; they begin at a half and double."""

_TRY_AGAIN = (408, 409, 425, 429)
"""Transient client errors; every other one is a refusal of the request itself."""


class Reply(NamedTuple):
    """The result of a prompt, after the last try."""

    outcome: Outcome
    text: str = ""
    finish_reason: str = ""
    usage: Usage = Usage()
    seconds: float = 0.0
    first_token: float | None = None
    tries: int = 1
    faults: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Log-probabilities of the answer's tokens, if requested and reported."""
    thought: str = ""
    """The answer of the turn before."""
    tokens: tuple[Chance, ...] = ()
    """Tokens of the continuation of a text."""
    ids: tuple[int, ...] = ()
    """Ids of these tokens; empty where the server gives none."""
    prompt_ids: tuple[int, ...] = ()


def joined(first: Reply, second: Reply) -> Reply:
    """Two turns as one: the answer of the second, the counts of the first, all of the time."""
    return second._replace(
        usage=first.usage,
        seconds=first.seconds + second.seconds,
        first_token=first.first_token,
        tries=max(first.tries, second.tries),
        faults=first.faults + second.faults,
        thought=first.text,
    )


class _Failed(Exception):
    """One try failed. `again`: the next one may not."""

    def __init__(self, outcome: Outcome, message: str, *, again: bool = True) -> None:
        super().__init__(message)
        self.outcome, self.again = outcome, again


class _Endpoint(NamedTuple):
    path: str
    whole: str
    """Part of a choice with the answer."""
    piece: str
    """The same in an event of a stream."""


_CHAT = _Endpoint("/chat/completions", "message", "delta")
_TEXT = _Endpoint("/completions", "text", "text")


class CompletionClient:
    """Asks one server, from any number of threads. `url` ends before `/chat/completions`.

    `timeout` bounds a whole try in seconds, however slowly bytes arrive; `retries` are made after
    a failed one. `fields` go into every request. Proxies of the environment are not used.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str = "",
        timeout: float = 120.0,
        retries: int = 2,
        stream: bool = True,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        self._http, self.url = HttpClient(url, key=key, timeout=timeout), url
        self._retries, self._stream = retries, stream
        self._fields = dict(fields or {})

    def close(self) -> None:
        """Cut off requests under way; their threads raise Aborted."""
        self._http.close()

    def ask(self, prompt: str, **fields: Any) -> Reply:
        """Send one user message. `fields` go before common ones. Never raises for a server."""
        return self.chat([{"role": "user", "content": prompt}], **fields)

    def chat(self, messages: Sequence[Mapping[str, str]], **fields: Any) -> Reply:
        """Send a whole conversation, as `ask`."""
        return self._send(_CHAT, {**fields, "messages": messages})

    def complete(self, prompt: Prompt, **fields: Any) -> Reply:
        """Have a text or token ids continued, as `ask`."""
        return self._send(_TEXT, {**fields, "prompt": prompt})

    def get(self, path: str) -> bytes:
        """Return the body at a path below the server's address. Raises OSError unless 2xx."""
        return self._http.get(path)

    def post(self, path: str, body: bytes = b"") -> None:
        """Send an order to the server, such as to empty its cache. Raises OSError."""
        self._http.post(path, body)

    def _send(self, to: _Endpoint, fields: Mapping[str, Any]) -> Reply:
        body = self._body(fields)
        faults: list[str] = []
        for attempt in range(1, self._retries + 2):
            begun = time.monotonic()
            try:
                reply = self._try(to, body, begun)
            except _Failed as failed:
                faults.append(f"{failed.outcome}: {failed}")
                if failed.again and attempt <= self._retries:
                    self._wait(attempt)
                    continue
                seconds = time.monotonic() - begun
                return Reply(failed.outcome, "", seconds=seconds, tries=attempt, faults=(*faults,))
            return reply._replace(tries=attempt, faults=(*faults,))
        raise AssertionError("the last try returns")

    def _body(self, fields: Mapping[str, Any]) -> bytes:
        body = {**self._fields, **fields}
        if self._stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return msgspec.json.encode(body)

    def _wait(self, attempt: int) -> None:
        if self._http.closed.wait(min(_MOST_WAIT, 2.0 ** (attempt - 2))):
            raise Aborted

    def _try(self, to: _Endpoint, body: bytes, begun: float) -> Reply:
        try:
            with self._http.exchange("POST", to.path, body) as response:
                _check_status(response)
                return _read(response, to, begun)
        except (OSError, http.client.HTTPException) as error:
            if self._http.closed.is_set():
                raise Aborted from error
            if isinstance(error, TimeoutError):
                raise _Failed("timeout", f"no answer within {self._http.timeout:g} s") from error
            raise _Failed("dropped", in_words(error)) from error
        except TooLong as error:
            raise _Failed("malformed", str(error)) from error
        except Malformed as error:
            raise _Failed(error.outcome, str(error)) from error


def _read(response: Response, to: _Endpoint, begun: float) -> Reply:
    if "text/event-stream" in response.kind:
        return _gathered(response, to.piece, begun)
    chunk = parse_completion(b"".join(response.pieces()), to.whole)
    return _reply([chunk], time.monotonic() - begun, None)


def _gathered(response: Response, part: str, begun: float) -> Reply:
    """Join a stream. Without its last event the connection was lost."""
    chunks: list[Chunk] = []
    first: float | None = None
    for event in response.events():
        chunk = parse_event(event.data, part)
        if chunk.last:
            break
        if chunk.text and first is None:
            first = time.monotonic() - begun
        chunks.append(chunk)
    else:
        if not any(chunk.finish_reason for chunk in chunks):
            raise http.client.IncompleteRead(b"")
    return _reply(chunks, time.monotonic() - begun, first)


def _reply(chunks: list[Chunk], seconds: float, first: float | None) -> Reply:
    """Join chunks. A complete answer may be empty; one that was cut off is an error."""
    text = "".join(chunk.text for chunk in chunks)
    reason = next((c.finish_reason for c in reversed(chunks) if c.finish_reason), "")
    tokens = tuple(each for chunk in chunks for each in chunk.tokens)
    if not text.strip() and not tokens and reason != "stop":
        raise _Failed("empty", f"an answer without text, finish reason {reason or 'none'}")
    usage = next((c.usage for c in reversed(chunks) if c.usage), Usage())
    logprobs = tuple(value for chunk in chunks for value in chunk.logprobs)
    return Reply(
        "answered", text, reason, usage, seconds, first, logprobs=logprobs, tokens=tokens,
        ids=tuple(each for chunk in chunks for each in chunk.ids),
        prompt_ids=next((chunk.prompt_ids for chunk in chunks if chunk.prompt_ids), ()),
    )  # fmt: skip


def _check_status(response: Response) -> None:
    if response.status < 300:
        return
    text = next(response.pieces(), b"")[:300].decode(errors="replace")
    message = f"{response.status} {' '.join(text.split())}".strip()
    if response.status >= 500 or response.status in _TRY_AGAIN:
        raise _Failed("server_error", message)
    raise _Failed("refused", message, again=False)
