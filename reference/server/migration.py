"""Moves requests between two servers of one model; their clients stay connected here (C5).

    client <-- this server <-- one JSON line a step -- the other server
               Engine.take_out -- POST /admin/requests --> Engine.bring_in

A request that the other server refuses or loses is brought back, and ends here.
"""

from __future__ import annotations

import http.client
import threading
from concurrent.futures import Future
from contextlib import closing
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from kvproof.reference.engine.migration import Moved
from kvproof.reference.engine.request_queue import Prompt
from kvproof.reference.model.interface import Content
from kvproof.reference.server.errors import ApiError, invalid
from kvproof.reference.server.language.language import Language, SamplingOptions, Score

PATH = "/admin/requests"
TYPE = "application/msgpack"
_SILENCE = 300.0
"""Seconds without a token after which the other server counts as lost."""
_LONGEST_LINE = 1 << 20


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `/admin/move`."""

    to: str
    """URL of the other server, without a path."""


class Travelling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `/admin/requests`: a request with everything that its next step needs."""

    model: str
    sampling: SamplingOptions
    cached: int | None
    """Tokens of the hit of its first admission; None: it was never admitted."""
    prompt: Prompt
    tokens: tuple[int, ...]
    computed: int
    drafts: tuple[int, ...]
    weights: int
    content: Content | None

    @property
    def moved(self) -> Moved:
        """The request as the engine takes it."""
        return Moved(
            self.prompt, self.tokens, self.computed, self.drafts, self.weights, self.content, None
        )


class Line(msgspec.Struct, frozen=True):
    """Tokens of one step, in the answer to `/admin/requests`; an error is the last line."""

    tokens: tuple[int, ...] = ()
    scores: tuple[Score, ...] = ()
    cached: int = 0
    done: bool = False
    error: str = ""


def travelling(moved: Moved, *, model: str, sampling: SamplingOptions, cached: int | None) -> bytes:
    """Encode a request that was taken out."""
    return msgspec.msgpack.encode(
        Travelling(
            model, sampling._replace(prompt_logprobs=None), cached,
            moved.prompt, moved.tokens, moved.computed, moved.drafts, moved.weights, moved.content,
        )
    )  # fmt: skip


def arrived(data: bytes, language: Language) -> Travelling:
    """Decode and check a request from another server. Raises ApiError 400."""
    try:
        found = msgspec.msgpack.decode(data, type=Travelling)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ApiError(400, f"the body is no request of another server: {error}") from None
    prompt, tokens = found.prompt, found.tokens
    count = len(prompt.tokens)
    if not count or tokens[:count] != prompt.tokens or len(tokens) >= prompt.most_tokens:
        raise ApiError(400, "its tokens are not its prompt and a part of its answer")
    if prompt.most_tokens > language.max_len:
        raise invalid("max_new_tokens", prompt.max_new_tokens, f"within {language.max_len} tokens")
    if not all(0 <= token < language.vocabulary for token in (*tokens, *found.drafts)):
        raise ApiError(400, f"its tokens are not all from 0 to {language.vocabulary - 1}")
    if not 0 <= found.computed < len(tokens) or (found.computed and found.content is None):
        raise invalid("computed", found.computed, "tokens before the last one, with content")
    if prompt.spans:
        raise ApiError(400, "requests with images do not move")
    return found


_KINDS: dict[str, type[http.client.HTTPConnection]] = {
    "http": http.client.HTTPConnection,
    "https": http.client.HTTPSConnection,
}


class Address:
    """Another server. Raises ApiError 400 for a text that is no URL of one."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        try:
            self._port = parts.port
        except ValueError:
            raise invalid("to", url, "the URL of a server", "http://127.0.0.1:8001") from None
        whole = parts.hostname and not parts.username and parts.path in ("", "/")
        if parts.scheme not in _KINDS or not whole:
            raise invalid("to", url, "the URL of a server", "http://127.0.0.1:8001")
        self._kind, self._host, self._key = _KINDS[parts.scheme], parts.hostname, key

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection that is opened with the first request."""
        assert self._host is not None
        return self._kind(self._host, self._port, timeout=_SILENCE)

    @property
    def headers(self) -> dict[str, str]:
        """Of every request."""
        return {"content-type": TYPE, "authorization": f"Bearer {self._key}"}


class Home(Protocol):
    """The loop that a request left; its methods may be called from any thread."""

    def answers(self, name: str) -> bool:
        """Whether the client still waits."""

    def relayed(self, name: str, line: Line) -> None:
        """Add tokens that the other server has computed."""

    def come_back(self, moved: Moved, received: tuple[int, ...], reason: str) -> None:
        """Continue the request here."""


class Relay:
    """Sends one request away, and hands its tokens to the loop as they come; has a thread."""

    def __init__(self, loop: Home, address: Address, moved: Moved, data: bytes) -> None:
        self._loop, self._address, self._moved, self._data = loop, address, moved, data
        self._received: list[int] = []
        self.accepted: Future[str] = Future()
        """Empty once its first tokens have come; otherwise why it came back."""

    def start(self) -> None:
        """Begin to send."""
        threading.Thread(target=self._run, name="kvproof-relay", daemon=True).start()

    def _run(self) -> None:
        reason = ""
        try:
            with closing(self._address.connect()) as connection:
                self._follow(connection)
        except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
            reason = str(error) or type(error).__name__
            self._loop.come_back(self._moved, tuple(self._received), reason)
        if not self.accepted.done():
            self.accepted.set_result(reason)

    def _follow(self, connection: http.client.HTTPConnection) -> None:
        """Read lines until the last one, or until the client has its answer or has left."""
        connection.request("POST", PATH, self._data, self._address.headers)
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            raise ConnectionError(f"{answer.status}: {_message(answer.read(_LONGEST_LINE))}")
        name = self._moved.prompt.id
        while self._loop.answers(name):
            line = msgspec.json.decode(answer.readline(_LONGEST_LINE), type=Line)
            if line.error:
                raise ConnectionError(line.error)
            self._received += line.tokens
            self._loop.relayed(name, line)
            if not self.accepted.done():
                self.accepted.set_result("")
            if line.done:
                return


def _message(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.MsgspecError, LookupError, TypeError):
        return "its answer is not that of kvproof serve"
