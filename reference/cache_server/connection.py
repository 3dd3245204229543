"""One client's calls: sessions that come back after a server was lost, calls that happen once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from kvproof.reference.cache_server import messages as m
from kvproof.reference.cache_server.address import AddressError
from kvproof.reference.cache_server.arena import ArenaLost
from kvproof.reference.cache_server.process import this_process
from kvproof.reference.stores.object_store import StoreUnavailable

if TYPE_CHECKING:
    from kvproof.reference.cache_server.link import Link

FIRST_WAIT = 0.25
"""Seconds until a call is repeated; twice as long each time."""


class CacheServerGone(StoreUnavailable, ConnectionError):
    """No server answers; the message names the remedy."""


class CacheServerRefused(StoreUnavailable, RuntimeError):
    """The server answered, and did nothing; `reason` is one of `messages.Reason`."""

    def __init__(self, address: str, refused: m.Refused) -> None:
        super().__init__(f"the cache server at {address} refuses: {refused.message}")
        self.reason = refused.reason


def as_mapped(_: memoryview) -> object:
    """Leave the memory of a server as it was mapped."""
    return None


class Held(Protocol):
    """A lease or a reservation."""

    def let_go(self) -> None:
        """End the views. Raises BufferError while something else refers to the bytes."""


@dataclass(eq=False)
class Session:
    """The client's record of one session; it is not valid in another one (G8)."""

    id: bytes
    generation: int
    welcome: m.Welcome
    open: dict[int, Held] = field(default_factory=dict)
    """Number -> lease or reservation."""
    arena: memoryview | None = None
    prepared: object = None
    """Result of `on_map` for the arena; it lives as long as something of the session does."""
    late: list[m.Request] = field(default_factory=list)
    """Releases that are sent as soon as the server answers again."""


class Connection:
    """Calls of one client, one at a time; threads may share it, a fork may not."""

    def __init__(
        self, link: Link, hello: m.Hello, *, timeout: float, on_map: Callable[[memoryview], object]
    ) -> None:
        self._link, self._hello, self._timeout, self._on_map = link, hello, timeout, on_map
        self._lock = threading.RLock()
        self._pid, self._closed = os.getpid(), False
        self._number = 0
        self._session: Session | None = None
        self._unfinished: tuple[int, bytes] | None = None
        """A call without an answer yet; it is repeated before the next call."""

    def call(self, request: m.Request, *, session: Session | None = None) -> m.Reply | None:
        """Return the answer of the server.

        `session`: the session that the request refers to; the result is None if it is gone. Raises
        CacheServerGone, CacheServerRefused.
        """
        with self._lock:
            while True:
                now = self.session()
                if session not in (None, now):
                    return None
                reply = self._send_once(now, request)
                if isinstance(reply, m.Refused):
                    raise CacheServerRefused(self._link.address, reply)
                if reply is not None:
                    return reply

    def session(self) -> Session:
        """Return the session, a new one if there is none. Raises as `call`."""
        with self._lock:
            if os.getpid() != self._pid:
                raise RuntimeError("a client of the cache server does not survive a fork: make one")
            if self._closed:
                raise RuntimeError("this client of the cache server is closed")
            if self._session is None:
                self._unfinished = None
                self._session = self._open()
            return self._session

    def give_back(self, session: Session, request: m.Request) -> None:
        """End a lease or a reservation; without an answer it is repeated before the next call."""
        with self._lock:
            if session is self._session:
                waits = bool(session.late)
                session.late.append(request)
                if not waits:
                    with suppress(CacheServerGone):  # the next call will say so
                        self._send_late(session)

    def arena(self, session: Session) -> memoryview:
        """Return the memory of a session's server, mapped at first use.

        Raises ArenaError; if the server ended meanwhile, ArenaLost, and the next session is
        with another one.
        """
        with self._lock:
            try:
                session.arena = session.arena or self._attach(session)
            except ArenaLost:
                self._session = None if self._session is session else self._session
                raise
            return session.arena

    def _attach(self, session: Session) -> memoryview:
        arena = self._link.attach(session.welcome, session.generation)
        session.prepared = self._on_map(arena)
        return arena

    def close(self) -> None:
        """End the session. Raises BufferError, and sends nothing, while its bytes are in use."""
        with self._lock:
            session = self._session
            for held in list(session.open.values()) if session else ():
                held.let_go()
            if session is not None and os.getpid() == self._pid:
                self._number += 1
                self._link.send(m.call(self._number, session.id, m.Goodbye()))
                self._link.receive(FIRST_WAIT)
            self._session, self._closed = None, True
            self._link.close()

    def _send_once(self, session: Session, request: m.Request) -> m.Reply | None:
        self._undo_unfinished(session)
        self._send_late(session)
        if self._session is not session:
            return None
        self._number += 1
        return self._exchange(session, self._number, m.call(self._number, session.id, request))

    def _exchange(self, session: Session, number: int, frame: bytes) -> m.Reply | None:
        self._unfinished = (number, frame)
        answer = self._answer(number, frame)
        self._unfinished = None
        lost = isinstance(answer.body, m.Refused) and answer.body.reason == "session"
        if lost or answer.generation != session.generation:
            self._session = None
            return None
        return answer.body

    def _send_late(self, session: Session) -> None:
        while session.late and self._session is session:
            self._undo_unfinished(session)
            self._number += 1
            frame = m.call(self._number, session.id, session.late[0])
            self._exchange(session, self._number, frame)
            del session.late[0]

    def _undo_unfinished(self, session: Session) -> None:
        while self._unfinished is not None and self._session is session:
            reply = self._exchange(session, *self._unfinished)
            undo: m.Request | None = None
            if isinstance(reply, m.Reserved):
                undo = m.Abort(reply.batch)
            elif isinstance(reply, m.Leased):
                undo = m.Release([reply.lease])
            if undo is not None and self._session is session:
                self._number += 1
                self._unfinished = (self._number, m.call(self._number, session.id, undo))

    def _open(self) -> Session:
        self._number += 1
        hello = msgspec.structs.replace(self._hello, process=this_process())
        answer = self._answer(self._number, m.call(self._number, b"", hello))
        if isinstance(answer.body, m.Refused):
            raise CacheServerRefused(self._link.address, answer.body)
        assert isinstance(answer.body, m.Welcome)
        return Session(answer.body.session, answer.generation, answer.body)

    def _reconnect(self) -> None:
        try:
            self._link.reconnect()
        except AddressError as error:
            raise CacheServerGone(str(error)) from error

    def _answer(self, number: int, frame: bytes) -> m.Answer:
        """Repeat the request until there is an answer. Raises CacheServerGone.

        An answer that is there counts, however late this process gets the processor again.
        """
        end, wait = time.monotonic() + self._timeout, FIRST_WAIT
        self._link.send(frame)
        left = self._timeout
        while left > 0:
            left = max(0.0, end - time.monotonic())
            data = self._link.receive(min(left, wait))
            if data is None and left:
                wait *= 2
                self._reconnect()
                self._link.send(frame)
            elif data and (answer := _decoded(data)) and answer.number == number:
                return answer
        raise CacheServerGone(
            f"no cache server answered at {self._link.address} within {self._timeout:g} s: check "
            "the address, or start one with `kvproof cache-server`"
        )


def _decoded(data: bytes) -> m.Answer | None:
    try:
        return m.answers.decode(data)
    except msgspec.DecodeError as error:
        raise CacheServerGone(f"something that is no cache server answered: {error}") from error
