"""One request in the machine: its input, the expected answer of each prompt, the longest hit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

from kvproof.reference.core.identity import Namespace, Span
from kvproof.suites.reference.engine.expected_tokens import Direct
from kvproof.suites.reference.http_server.deterministic_loop import Client
from kvproof.suites.reference.http_server.replies import Reply, read


class Wanted(NamedTuple):
    """An answer; the token that ends it is counted and has no text."""

    tokens: tuple[int, ...]
    text: str
    finish: str


class Limits(NamedTuple):
    """End conditions of one answer."""

    most: int
    stops: tuple[str, ...]
    ends: frozenset[int]


def answer(direct: Direct, prompt: Sequence[int], limits: Limits, letters: Sequence[str]) -> Wanted:
    tokens: list[int] = []
    text = ""
    while True:
        tokens.append(direct.token_after([*prompt, *tokens], len(letters)))
        if tokens[-1] in limits.ends:
            return Wanted(tuple(tokens), text, "stop")
        text += letters[tokens[-1]]
        cuts = [text.find(stop) for stop in limits.stops if stop in text]
        if cuts:
            return Wanted(tuple(tokens), text[: min(cuts)], "stop")
        if len(tokens) == limits.most:
            return Wanted(tuple(tokens), text, "length")


def content(tokens: Sequence[int], spans: Sequence[Any]) -> list[Any]:
    """Return the content of each position: a token, or a piece of a medium."""
    found: list[Any] = list(tokens)
    for span in spans:
        for offset in range(span.length):
            found[span.start + offset] = (span.content, offset)
    return found


def common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the number of leading positions that two requests share."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def reusable(shared: int, length: int, spans: Sequence[Any], block_size: int) -> int:
    """Return the longest hit of `shared` positions: whole blocks, a token left, no span split."""
    hit = min(shared, length - 1) // block_size * block_size
    while inside := [s.start for s in spans if s.start < hit < s.start + s.length]:
        hit = min(inside) // block_size * block_size
    return hit


State: TypeAlias = Literal["sent", "begun", "completed", "cancelled", "failed", "refused"]


class How(NamedTuple):
    most: int
    stops: list[str]
    salt: str | None
    stream: bool
    usage: bool
    token_ids: bool
    ignore_ends: bool
    logprobs: int | None
    echo: bool
    n: int = 1
    """Answers to each prompt."""


@dataclass
class Order:
    prompt: tuple[int, ...]
    spans: tuple[Span, ...]
    namespace: Namespace
    wanted: Wanted
    most: int
    reads: bool
    fits: bool
    state: State = "sent"
    name: str = ""
    """Id of the request in the engine, once it has arrived there."""
    hit: int | None = None
    said: int = 0
    """Tokens of its answer that the model has output."""

    @cached_property
    def asks(self) -> list[Any]:
        return content(self.prompt, self.spans)

    @cached_property
    def leaves(self) -> list[Any]:
        """Content in the cache at the end; the last token of an answer never gets in."""
        return [*self.asks, *self.wanted.tokens[:-1]]

    @property
    def inside(self) -> bool:
        """Whether the engine has it, or is about to."""
        return self.state in ("sent", "begun")


@dataclass
class TrackedRequest:
    """A request that was accepted."""

    client: Client
    orders: list[Order]
    how: How
    chat: bool
    closed: bool = False
    """Whether its client has left, or has everything."""
    _reply: Reply = field(default_factory=Reply)
    _length: int = -1

    @property
    def reply(self) -> Reply:
        data = self.client.received
        if len(data) != self._length:
            self._length = len(data)
            self._reply = read(bytes(data), stream=self.how.stream)
        return self._reply

    @property
    def inside(self) -> bool:
        return any(order.inside for order in self.orders)

    def has(self, state: State) -> bool:
        return any(order.state == state for order in self.orders)
