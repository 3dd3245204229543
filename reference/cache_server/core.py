"""The cache server without sockets: messages and a clock in, answers out (G7, G8, H6).

    answer = server.handle(message)      for every message, valid or not
    server.died(session)                 once the process is certainly gone
    server.tick()                        about once a second

Bytes that a client may write, or read under a lease, stay reserved until that client
releases them or is dead. A silent client may be alive: only the key that it was writing is opened
to others, which get other bytes.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from kvproof.reference.cache_server import messages as m
from kvproof.reference.cache_server.answers import Decline, Verbs
from kvproof.reference.cache_server.object_index import ObjectIndex, Space
from kvproof.reference.cache_server.report import Report, SessionReport
from kvproof.reference.cache_server.sessions import Session

MOST_SESSIONS = 1024


class Settings(NamedTuple):
    """Settings of the operator."""

    size: int
    """Bytes of the arena."""
    token: str = ""
    """Empty: no token is required."""
    patience: float = 60.0
    """Seconds of silence after which reservations lapse."""
    pinned_share: float = 0.5
    """Share of the arena that pins may keep."""


class Witness(Protocol):
    """Sees processes die."""

    def watch(self, session: bytes, process: m.Process, peer: object) -> tuple[int, bool]:
        """Return the process id, and whether `died` will be called when it is certainly gone.

        `peer`: the sender, as the transport reports it. Raises ValueError if the process no longer
        exists, or is another one.
        """

    def forget(self, session: bytes) -> None:
        """Stop watching."""


class Nobody:
    """A witness that proves nothing."""

    def watch(self, session: bytes, process: m.Process, peer: object) -> tuple[int, bool]:
        """Believe the client."""
        del session, peer
        return process.pid, False

    def forget(self, session: bytes) -> None:
        """Nothing was watched."""


class CacheServer:
    """Sessions, and the objects that they share."""

    def __init__(
        self,
        settings: Settings,
        *,
        generation: int,
        place: tuple[m.Process, int],
        witness: Witness | None = None,
        now: Callable[[], float] = time.monotonic,
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.settings = settings
        self.generation = generation
        """Number of the arena: no message refers to an extent of another one."""
        self.objects = ObjectIndex(settings.size)
        self.spaces: dict[str, Space] = {}
        self.sessions: dict[bytes, Session] = {}
        self.refused: Counter[str] = Counter()
        self._place = place
        self._witness = witness or Nobody()
        self._now, self._random = now, random
        most_pinned = settings.pinned_share * settings.size
        self._verbs = Verbs(self.objects, most_pinned=most_pinned, refused=self.refused)

    def handle(self, frame: bytes, peer: object = None) -> bytes:
        """Return the answer to a message; nothing in a message can raise (G8)."""
        number = 0
        try:
            if len(frame) > m.MOST_BYTES:
                raise Decline("malformed", f"{len(frame)} bytes; at most {m.MOST_BYTES}")
            call = m.calls.decode(frame)
            number = call.number
            return self._answer(call, peer)
        except Decline as decline:
            self.refused[decline.reason] += 1
            return m.answer(number, self.generation, m.Refused(decline.reason, str(decline)))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            self.refused["malformed"] += 1
            return m.answer(number, self.generation, m.Refused("malformed", str(error)))

    def died(self, session: bytes) -> None:
        """Take everything back from a client whose process is gone for certain (G8)."""
        if session in self.sessions:
            self._end(self.sessions[session])

    def tick(self) -> None:
        """Let reservations of silent clients lapse, and forget clients that hold nothing."""
        before = self._now() - self.settings.patience
        for session in [each for each in self.sessions.values() if each.last_call < before]:
            if not session.held:
                self._end(session)
                continue
            session.lapsed = True
            for batch in session.batches.values():
                for entry in batch.unwritten:
                    self.objects.unlist(entry)
        for space in list(self.spaces.values()):
            self._tidy(space)

    def report(self, space: Space | None = None) -> Report:
        """Count objects and bytes; `space` is the asking client's (G8)."""
        objects, spaces = self.objects, self.spaces.values()
        return Report(
            capacity=objects.allocator.size,
            used=objects.allocator.used,
            largest_free=objects.allocator.largest,
            objects=sum(each.readable for each in spaces),
            payload=sum(each.payload for each in spaces),
            leased=sum(each.leased for each in spaces),
            reserved=objects.reserved,
            dropped=objects.doomed,
            pinned=objects.pinned,
            pinned_bytes=objects.pinned_bytes,
            stored=objects.counts["stored"],
            evicted=objects.counts["evicted"],
            hits=self._verbs.hits,
            misses=self._verbs.misses,
            refused=dict(+self.refused),
            sessions=[self._session_report(session) for session in self.sessions.values()],
            space_objects=space.readable if space else 0,
            space_payload=space.payload if space else 0,
            space_leased=space.leased if space else 0,
        )

    def _session_report(self, session: Session) -> SessionReport:
        return SessionReport(
            session.pid,
            session.provable,
            round(self._now() - session.last_call, 3),
            session.lapsed,
            session.space.name,
            sum(len(batch.writing) for batch in session.batches.values()),
            len(session.leases),
        )

    def _answer(self, call: m.Call, peer: object) -> bytes:
        if call.version != m.VERSION:
            raise Decline("version", f"version {call.version}; this server speaks {m.VERSION}")
        request = m.requests.decode(call.body)
        if isinstance(request, m.Hello):
            return m.answer(call.number, self.generation, self._hello(request, peer))
        session = self._session(call.session)
        if call.number == session.number:
            return session.answer
        if call.number < session.number:
            raise Decline("malformed", f"call {call.number} came after {session.number}")
        if isinstance(request, m.Goodbye):
            self._end(session)
            return m.answer(call.number, self.generation, m.Count(0))
        try:
            reply = self._reply(session, request)
        except Decline as decline:
            self.refused[decline.reason] += 1
            reply = m.Refused(decline.reason, str(decline))
        session.number = call.number
        session.answer = m.answer(call.number, self.generation, reply)
        return session.answer

    def _reply(self, session: Session, request: m.Request) -> m.Reply:
        if isinstance(request, m.Status):
            return m.StatusReply(self.report(session.space))
        return self._verbs.do(session, request)

    def _session(self, of: bytes) -> Session:
        session = self.sessions.get(of)
        if session is None:
            raise Decline("session", "there is no such session: say hello")
        session.last_call, session.lapsed = self._now(), False
        return session

    def _hello(self, hello: m.Hello, peer: object) -> m.Welcome:
        if not hmac.compare_digest(hello.token.encode(), self.settings.token.encode()):
            raise Decline("token", "the token is wrong" if hello.token else "a token is needed")
        if len(self.sessions) >= MOST_SESSIONS:
            raise Decline("limit", f"there are {MOST_SESSIONS} sessions already")
        space = self._space(hello)
        name = self._random(16)
        try:
            pid, provable = self._witness.watch(name, hello.process, peer)
        except ValueError as error:
            self._tidy(space)
            raise Decline("unknown", str(error)) from error
        space.sessions += 1
        self.sessions[name] = Session(name, space, pid, provable, self._now())
        server, descriptor = self._place
        size = self.settings.size
        return m.Welcome(name, server, descriptor, size, self.settings.patience)

    def _space(self, hello: m.Hello) -> Space:
        space = self.spaces.get(hello.namespace)
        if space is None:
            space = self.spaces[hello.namespace] = Space(hello.namespace, hello.layout)
        if space.layout != hello.layout:
            raise Decline(
                "layout",
                f"objects of namespace {space.name!r} have layout {space.layout.hex() or 'none'}, "
                f"not {hello.layout.hex() or 'none'}: use another namespace",
            )
        return space

    def _end(self, session: Session) -> None:
        self._witness.forget(session.id)
        del self.sessions[session.id]
        self._verbs.take_back(session)
        session.space.sessions -= 1
        self._tidy(session.space)

    def _tidy(self, space: Space) -> None:
        """Drop an empty namespace and its layout."""
        if space.unused:
            self.spaces.pop(space.name, None)
