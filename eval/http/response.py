"""Bytes of one HTTP answer, all of them before a deadline."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator

from kvproof.eval.http.chat_completion import Malformed

_PIECE = 1 << 16
_MOST_ANSWER = 1 << 26
"""Bytes after which an answer is garbage rather than long."""


class Answer:
    """A response whose bytes must all arrive before the deadline."""

    def __init__(
        self, response: http.client.HTTPResponse, wire: socket.socket, deadline: float
    ) -> None:
        self.status, self.kind = response.status, response.getheader("Content-Type", "")
        self._response, self._wire, self._deadline = response, wire, deadline

    def pieces(self) -> Iterator[bytes]:
        """Bytes as they arrive. Raises TimeoutError, or IncompleteRead if some are missing."""
        total = 0
        while True:
            self._wire.settimeout(left(self._deadline))
            piece = self._response.read1(_PIECE)
            total += len(piece)
            if total > _MOST_ANSWER:
                raise Malformed(f"the answer has more than {_MOST_ANSWER:,} bytes")
            if not piece:
                break
            yield piece
        if self._response.length:
            raise http.client.IncompleteRead(b"", self._response.length)

    def lines(self) -> Iterator[bytes]:
        """Lines of a stream, without their ends."""
        rest = b""
        for piece in self.pieces():
            *whole, rest = (rest + piece).split(b"\n")
            yield from (line.rstrip(b"\r") for line in whole)
        if rest:
            yield rest


def left(deadline: float) -> float:
    """Seconds until then. Raises TimeoutError if there are none."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
