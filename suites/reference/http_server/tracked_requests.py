"""One request in the machine: its input, and the expected answer of each prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

from kvproof.reference.core.identity import Namespace, Span
from kvproof.suites.reference.http_server.client import Client
from kvproof.suites.reference.http_server.expected import Wanted, content
from kvproof.suites.reference.http_server.replies import Reply, read

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
    """Its id in the engine, once it has arrived there."""
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
