"""How messages of a client get to its server, by ZeroMQ."""

from __future__ import annotations

from typing import Protocol

from kvproof.reference.cache_server import arena
from kvproof.reference.cache_server.address import AddressError, check_owner, is_ipv6, parse
from kvproof.reference.cache_server.messages import Welcome
from kvproof.reference.cache_server.process import spare_descriptors

try:
    import zmq
except ImportError as error:
    raise ImportError("the cache server needs ZeroMQ: pip install 'kvproof[server]'") from error


class Link(Protocol):
    """A client's transport; messages may be lost, repeated or late."""

    @property
    def address(self) -> str:
        """Of the server, for errors."""

    def send(self, frame: bytes) -> None:
        """Send a message, at once."""

    def receive(self, seconds: float) -> bytes | None:
        """Return the next message, or None if there is none in time."""

    def reconnect(self) -> None:
        """Start afresh: the server may be another one."""

    def attach(self, welcome: Welcome, generation: int) -> memoryview:
        """Return the arena of a server. Raises ArenaError."""

    def close(self) -> None:
        """Let go of everything."""


class ZmqLink:
    """One socket, made anew at each reconnection."""

    def __init__(self, address: str) -> None:
        """Raises AddressError for an address without a socket, and for a stranger's socket.

        Raises OSError where the process may not open as many files as ZeroMQ needs.
        """
        self.address = address
        self._check_owner()
        spare_descriptors()
        self._context = zmq.Context()
        self._socket = self._connected()

    def _connected(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 16)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.IPV6, is_ipv6(self.address))
        try:
            socket.connect(self.address)
        except zmq.ZMQError as error:
            socket.close()
            self._context.term()
            raise AddressError(
                f"address {self.address!r} cannot be used: {error.strerror}; it must be like "
                "ipc:///run/kvproof/cache.sock or tcp://127.0.0.1:7070"
            ) from error
        return socket

    def send(self, frame: bytes) -> None:
        """See Link; a frame that cannot be sent at once is lost."""
        try:
            self._socket.send(frame, zmq.DONTWAIT)
        except zmq.Again:
            self.reconnect()

    def receive(self, seconds: float) -> bytes | None:
        """See Link."""
        if not self._socket.poll(max(1, int(seconds * 1000)), zmq.POLLIN):
            return None
        return self._socket.recv()

    def reconnect(self) -> None:
        """See Link; raises AddressError for a stranger's socket in its place."""
        self._check_owner()
        self._socket.close()
        self._socket = self._connected()

    def _check_owner(self) -> None:
        """Before a token is sent."""
        if path := parse(self.address).path:
            check_owner(path)

    def attach(self, welcome: Welcome, generation: int) -> memoryview:
        """See Link."""
        return arena.attach(welcome, generation)

    def close(self) -> None:
        """See Link."""
        self._socket.close()
        self._context.term()
