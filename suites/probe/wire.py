"""What the checks need of an HTTP client; who calls them brings one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol


class Raw(Protocol):
    """An answer whose bytes are still to come."""

    @property
    def status(self) -> int:
        """Of HTTP."""

    def pieces(self) -> Iterator[bytes]:
        """Yield bytes as they arrive. Raises OSError, HTTPException, ValueError."""

    def lines(self) -> Iterator[bytes]:
        """Yield lines without their ends. Raises as `pieces`."""


class Wire(Protocol):
    """Asks one server, from any number of threads."""

    def exchange(
        self, method: str, path: str, body: bytes, *, timeout: float, whole: bool = False
    ) -> AbstractContextManager[Raw]:
        """Send one request; leaving the block closes its connection, whatever is under way.

        `path` is below the API's address, or with `whole` below the server's; `timeout`: seconds
        for everything. Raises OSError, HTTPException.
        """
