"""All that lies between SGLang's managers: messages, threads and copies, in order in one thread.

A thread of a manager runs when it is called, until nothing waits for it; a copy is done at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar


class Nothing(Exception):
    """No message waits."""


class Held:
    """A thread that does not run by itself."""

    started: ClassVar[list[Held]] = []

    def __init__(self, target: Callable[..., Any], args: tuple[Any, ...] = (), **_: Any) -> None:
        self.target, self.args = target, args

    def start(self) -> None:
        """Note that it would run."""
        Held.started.append(self)

    def run(self) -> None:
        """Run it until it waits for a message."""
        with suppress(Nothing):
            self.target(*self.args)


class Threads:
    """In place of the module `threading`, where threads are started."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.Thread = Held

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class Box:
    """The messages to one manager."""

    by_port: ClassVar[dict[int, Box]] = {}

    def __init__(self) -> None:
        self.port = len(Box.by_port) + 1
        self._messages: list[list[bytes]] = []
        Box.by_port[self.port] = self

    def recv_multipart(self) -> list[bytes]:
        """Return the oldest message. Raises Nothing."""
        if not self._messages:
            raise Nothing
        return self._messages.pop(0)

    def send_multipart(self, parts: list[bytes]) -> None:
        """Put a message in."""
        self._messages.append(parts)


def box_of(endpoint: str) -> Box:
    """Return the box at an address. Raises KeyError."""
    return Box.by_port[int(endpoint.rsplit(":", 1)[1])]


class Library:
    """Mooncake's transfer engine: each copy is done when it is asked for."""

    def __init__(self, number: int) -> None:
        self._session = f"side:{number}"
        self.written: set[str] = set()
        """Sessions to which bytes went since it was emptied."""

    def get_session_id(self) -> str:
        """Return the name of this end."""
        return self._session

    def batch_register(self, *_: Any) -> int:
        """All memory can be reached."""
        return 0

    def batch_transfer_sync(
        self, session: str, sources: list[int], targets: list[int], lengths: list[int]
    ) -> int:
        """Copy pieces, in order."""
        for source, target, length in zip(sources, targets, lengths, strict=True):
            ctypes.memmove(int(target), int(source), int(length))
            self.written |= {session} if length else set()
        return 0
