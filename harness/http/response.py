"""The response to one request: bytes or events, all of them before a deadline."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator

from kvproof.harness.http.sse import ServerEvent, events

_PIECE = 1 << 16
_MOST_BYTES = 1 << 26
"""Bytes after which a response is garbage rather than long."""


class TooLong(ValueError):
    """A response has more bytes than any sensible answer."""


class Response:
    """A response whose bytes must all arrive before the deadline."""

    def __init__(
        self, response: http.client.HTTPResponse, wire: socket.socket, deadline: float
    ) -> None:
        self.status, self.kind = response.status, response.getheader("Content-Type", "")
        self._response, self._wire, self._deadline = response, wire, deadline

    def pieces(self) -> Iterator[bytes]:
        """Bytes as they arrive. Raises TimeoutError, TooLong, IncompleteRead if it is cut."""
        total = 0
        while True:
            self._wire.settimeout(left(self._deadline))
            piece = self._response.read1(_PIECE)
            total += len(piece)
            if total > _MOST_BYTES:
                raise TooLong(f"the answer has more than {_MOST_BYTES:,} bytes")
            if not piece:
                break
            yield piece
        if self._response.length:
            raise http.client.IncompleteRead(b"", self._response.length)

    def events(self) -> Iterator[ServerEvent]:
        """Server-sent events as they arrive. Raises as `pieces`."""
        return events(self.pieces())


def left(deadline: float) -> float:
    """Seconds until then. Raises TimeoutError if there are none."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
