"""The cache server as a process: one loop over ZeroMQ's messages and the deaths of clients (G8).

A turn handles the messages that wait, at most `TURN` of them, one client's after the other's;
deaths are looked for before each of them, so that what a killed client held is free for a
message that was sent after its death.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from kvproof.reference.cache_server import messages as m
from kvproof.reference.cache_server.address import Address, AddressError, Claim, is_ipv6
from kvproof.reference.cache_server.arena import Arena
from kvproof.reference.cache_server.core import CacheServer, Settings
from kvproof.reference.cache_server.process import Deaths, spare_descriptors, this_process

try:
    import zmq
except ImportError as error:
    raise ImportError("the cache server needs ZeroMQ: pip install 'kvproof[server]'") from error

LOG = logging.getLogger("kvproof.reference.cache_server")
TURN = 64
"""Messages between two looks at the clock."""
TICK = 1.0
"""Seconds between two ticks of the core."""
HARD_LIMIT = 16 * m.MOST_BYTES
"""Bytes of a message at which the connection is closed instead of an answer."""
WAITING = 64
"""Messages of one client that may wait; more wait on the client's side."""


class Server:
    """Owns the arena, the socket and the core; usable once."""

    def __init__(self, address: Address, settings: Settings) -> None:
        size = -(-settings.size // mmap.PAGESIZE) * mmap.PAGESIZE
        with ExitStack() as opened:
            self.deaths = Deaths()
            opened.callback(self.deaths.close)
            generation = int.from_bytes(os.urandom(7), "little")
            arena = Arena(size, generation)
            opened.callback(arena.close)
            place = (this_process(), arena.descriptor)
            settings = settings._replace(size=size)
            self.core = CacheServer(
                settings, generation=generation, place=place, witness=self.deaths
            )
            opened.enter_context(Claim(address))
            spare_descriptors()
            context = zmq.Context()
            opened.callback(context.term)
            self._socket = context.socket(zmq.ROUTER)
            opened.callback(self._socket.close, 0)
            self.address = _bind(self._socket, address)
            self.snapshot = self.core.report()
            """As of the last tick, for other threads."""
            self._opened = opened.pop_all()

    def serve(self, until: Callable[[], bool] = lambda: False) -> None:
        """Answer until `until` returns True; it is called after every turn."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self.deaths.descriptor, zmq.POLLIN)
        ticked = time.monotonic()
        while not until():
            poller.poll(int(TICK * 1000))
            self._turn()
            if time.monotonic() - ticked >= TICK:
                ticked = time.monotonic()
                self.core.tick()
                self.snapshot = self.core.report()

    def close(self) -> None:
        """Give memory, socket and address back."""
        self._opened.close()

    def _turn(self) -> None:
        for _ in range(TURN):
            self._bury()
            try:
                client, *frames = self._socket.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return
            answer = self._answer(frames)
            # a client that does not read loses answers, which it asks for again
            self._socket.send_multipart([client.bytes, answer], zmq.DONTWAIT)

    def _bury(self) -> None:
        for session in self.deaths.seen():
            LOG.debug("dead session=%s", session.hex())
            self.core.died(session)

    def _answer(self, frames: list[zmq.Frame]) -> bytes:
        body = frames[-1].bytes if len(frames) == 1 else b""
        try:
            return self.core.handle(body, _peer(frames[-1]) if frames else None)
        except Exception:  # a fault of ours must not take every client's cache with it
            LOG.exception("a message broke the cache server's core: %s", body[:64].hex())
            refused = m.Refused("internal", "the cache server has a fault; see its log")
            return m.answer(0, self.core.generation, refused)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _bind(socket: zmq.Socket[bytes], address: Address) -> str:
    socket.setsockopt(zmq.MAXMSGSIZE, HARD_LIMIT)
    socket.setsockopt(zmq.RCVHWM, WAITING)
    socket.setsockopt(zmq.SNDHWM, WAITING)
    socket.setsockopt(zmq.IPV6, is_ipv6(address.url))
    before = os.umask(0o077)  # the socket's file is for its owner only
    try:
        socket.bind(address.url)
    except zmq.ZMQError as error:
        raise AddressError(f"cannot listen at {address.url}: {error.strerror}") from error
    finally:
        os.umask(before)
    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))


def _peer(frame: zmq.Frame) -> int | None:
    """Return the sender's process id from the kernel: `:user:group:process`."""
    try:
        known = re.fullmatch(r":\d+:\d+:(\d+)", str(frame.get("Peer-Address")))
    except zmq.ZMQError:  # a message without parts of its own, from a peer that is gone
        return None
    return int(known[1]) if known else None  # else the address of a host
