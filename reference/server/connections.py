"""Limits on connections: how many, how long half a request may take, and no descriptors left.

uvicorn bounds none of these, and asyncio writes thousands of lines when descriptors run out.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

LOG = logging.getLogger("kvproof.server")
OWN_DESCRIPTORS = 64
"""Descriptors that the process needs besides connections: tiers, metrics, a remote store."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)


def most_connections(wanted: int) -> int:
    """Return how many connections the process can hold: as wanted, or as descriptors allow."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft - OWN_DESCRIPTORS))


class Door(socket.socket):
    """A listening socket; without a descriptor for a connection it closes that connection.

    A spare descriptor is given up for the moment: a connection that waits would wake the event
    loop again and again.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._spare = os.open(os.devnull, os.O_RDONLY)
        self._short = False

    def accept(self) -> tuple[socket.socket, Any]:
        """Return a connection. Raises BlockingIOError if there is none, or no descriptor for it."""
        try:
            found = super().accept()
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            self._turn_away(error)
            raise BlockingIOError from None
        self._short = False
        return found

    def _turn_away(self, error: OSError) -> None:
        if not self._short:
            self._short = True
            LOG.error("connections are turned away until some end: %s", error.strerror)
        if self._spare >= 0:
            os.close(self._spare)
        try:
            super().accept()[0].close()
        except OSError:
            pass  # the client went away, or another thread has taken the descriptor
        finally:
            self._spare = _spare()

    def close(self) -> None:
        """Close the socket and the spare descriptor."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        super().close()


def _spare() -> int:
    try:
        return os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return -1


class _Timer:
    """Calls once, unless it is stopped in time."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float, action: Callable[[], object]) -> None:
        """Begin; a running timer goes on."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(seconds, action)

    def stop(self) -> None:
        """Forget it."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class Guarded(H11Protocol):
    """One connection; it ends when a request, or the reading of an answer, takes too long."""

    most: int
    """Connections."""
    patience: float
    """Seconds."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._half, self._unread = _Timer(), _Timer()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Turn it away if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            LOG.warning("connections are turned away: there are %d", self.most)
            transport.write(_FULL)
            transport.close()
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        """Take more of a request."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Give the client some time to read."""
        super().pause_writing()
        self._unread.start(self.patience, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        super().resume_writing()
        self._unread.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._half.stop()
        self._unread.stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Time the request that is not whole yet, from the end of the one before it."""
        if not self.transport.is_closing() and self._is_half():
            self._half.start(self.patience, self.transport.close)
        else:
            self._half.stop()

    def _is_half(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete or cycle.more_body


def protocol(*, most: int, patience: float) -> type[Guarded]:
    """Return the class of a server's connections."""
    limits = {"most": most_connections(most), "patience": patience}
    return type("Connection", (Guarded,), limits)
