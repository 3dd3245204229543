"""Sessions: conversations whose blocks stay between turns, until they close or expire (Q7).

    begin   the history and new tokens are admitted as one request
    end     the tokens of the turn become history; its cached blocks are held
    abort   the turn is gone; the session has the history and blocks of before

Held blocks keep no request out for good: where one finds no room, the session that was idle
longest gives its blocks to the cache and stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias, Unpack, get_args

from msgspec import Struct

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.hooks import Answer
from kvproof.reference.cache.request_state import AdmitOptions, AdmitRequest, Refusal
from kvproof.reference.core.identity import (
    DEFAULT_NAMESPACE,
    TOKEN_BYTES,
    Namespace,
    Span,
    Tokens,
    token_bytes,
)
from kvproof.reference.core.validation import require

Retention: TypeAlias = Literal["held", "cached"]
_ROOM = ("no_space", "no_state_row")


class Session(Struct):
    """A conversation that is open."""

    id: str
    namespace: Namespace
    retention: Retention
    """`held`: its blocks are not evicted; `cached`: they are as those of any other prompt."""
    idle: float
    """Seconds without a turn after which it expires."""
    used: float
    """When it was opened, or its last turn ended."""
    history: bytes = b""
    """Tokens of its complete turns, int32."""
    spans: tuple[Span, ...] = ()
    """Media of its complete turns."""
    kept: int = 0
    """Tokens whose blocks it holds."""
    turn: str | None = None
    """Its request, while a turn runs."""
    pin: str = ""
    """Pin of the cache manager that holds its blocks; empty: it holds none."""


class Turn(NamedTuple):
    """All of a request: the history, then its own."""

    tokens: bytes
    """int32"""
    spans: tuple[Span, ...]
    namespace: Namespace


class Sessions:
    """The open sessions of one cache manager; requests of no session are admitted here, too."""

    def __init__(self, manager: CacheManager, clock: Callable[[], float]) -> None:
        """`clock` returns seconds."""
        self.open_ones: dict[str, Session] = {}
        self._manager = manager
        self._clock = clock
        self._pins = 0
        manager.hooks.reset.append(self._forget)

    # --- life ---

    def open(
        self,
        session: str,
        *,
        retention: Retention = "held",
        idle: float = 600.0,
        namespace: Namespace = DEFAULT_NAMESPACE,
    ) -> Session:
        """Open a session without history. Raises ConfigError if its name or `idle` is wrong."""
        require(session not in self.open_ones, "session", session, "not open", "chat-1")
        known = retention in get_args(Retention)
        require(known, "retention", retention, "held or cached", "held")
        require(idle > 0, "idle", idle, "a number of seconds above 0", 600.0)
        found = Session(session, namespace, retention, idle, self._clock())
        self.open_ones[session] = found
        return found

    def fork(self, session: str, new: str) -> Session:
        """Open a session with the complete turns of another one. Raises KeyError, ConfigError."""
        parent = self.open_ones[session]
        child = self.open(
            new, retention=parent.retention, idle=parent.idle, namespace=parent.namespace
        )
        child.history, child.spans = parent.history, parent.spans
        self._hold(child)
        return child

    def close(self, session: str) -> bool:
        """Abort its turn and give its blocks to the cache; returns whether it was open."""
        found = self.open_ones.get(session)
        if found is None:
            return False
        self.abort(session)
        self._yield(found)
        del self.open_ones[session]
        return True

    def expire(self) -> list[str]:
        """Close the sessions that were idle for too long; returns their names."""
        now = self._clock()
        late = [
            each.id
            for each in self.open_ones.values()
            if each.turn is None and now - each.used >= each.idle
        ]
        for session in late:
            self.close(session)
        return late

    # --- turns ---

    def begin(
        self, session: str, request_id: str, tokens: Tokens, **options: Unpack[AdmitOptions]
    ) -> Answer:
        """Admit the history and `tokens` as one request; new spans follow the history (M1).

        Raises RuntimeError while a turn runs.
        """
        found = self._free(session)
        options["namespace"] = found.namespace
        options["spans"] = (*found.spans, *options.get("spans", ()))
        request = AdmitRequest(request_id, found.history + token_bytes(tokens), **options)
        answer = self.admit(request, own=found)
        if not isinstance(answer, Refusal):
            found.turn = request_id
        return answer

    def enter(
        self, session: str, request_id: str, tokens: Tokens, spans: Sequence[Span] = ()
    ) -> Turn:
        """Begin a turn that a queue admits later, by `admit`; `leave` ends it.

        Until it runs, its session is idle. Raises KeyError, and RuntimeError while a turn runs.
        """
        found = self._free(session)
        found.turn = request_id
        whole = found.history + token_bytes(tokens)
        return Turn(whole, (*found.spans, *spans), found.namespace)

    def leave(self, request_id: str, turn: Turn | None = None) -> None:
        """End a turn whose request is released: with all of its tokens, or aborted."""
        found = self._of(request_id)
        if found is None:
            return
        found.turn = None
        if turn is not None:
            found.history, found.spans, found.used = turn.tokens, turn.spans, self._clock()
            self._hold(found)

    def runs(self, request_id: str) -> bool:
        """Tell whether a request is the turn of a session."""
        return self._of(request_id) is not None

    def _free(self, session: str) -> Session:
        found = self.open_ones[session]
        if found.turn is not None:
            raise RuntimeError(f"session {session!r} runs turn {found.turn!r}; end or abort it")
        return found

    def _of(self, request_id: str) -> Session | None:
        """Return the session of a turn."""
        return next((each for each in self.open_ones.values() if each.turn == request_id), None)

    def end(self, session: str) -> int:
        """End the turn, whose steps have ended; returns the tokens that the session holds now.

        Raises RuntimeError if none runs.
        """
        found = self.open_ones[session]
        if found.turn is None:
            raise RuntimeError(f"session {session!r} runs no turn; begin one first")
        request = self._manager.live[found.turn]
        found.history, found.spans = bytes(request.tokens), tuple(request.spans)
        self._manager.release(found.turn)
        found.turn, found.used = None, self._clock()
        self._hold(found)
        return found.kept

    def abort(self, session: str) -> None:
        """Release the turn; the session has the history and the blocks of before it."""
        found = self.open_ones[session]
        if found.turn is not None:
            self._manager.release(found.turn)
            found.turn = None

    # --- room ---

    def admit(self, request: AdmitRequest, *, own: Session | None = None) -> Answer:
        """Admit a request; sessions that are idle make room for it (see `CacheManager.admit`)."""
        return self._with_room(lambda: self._manager.admit(request), own or self._of(request.id))

    def extend(
        self,
        request_id: str,
        tokens: Tokens = (),
        *,
        compute: int | None = None,
        drafts: Tokens = (),
    ) -> Answer:
        """Extend a request; sessions that are idle make room (see `CacheManager.extend`)."""
        return self._with_room(
            lambda: self._manager.extend(request_id, tokens, compute=compute, drafts=drafts),
            self._of(request_id),
        )

    def _with_room(self, ask: Callable[[], Answer], own: Session | None) -> Answer:
        """Take blocks of as few sessions as it needs, the longest idle first; of none in vain."""
        answer, gave = ask(), list[tuple[Session, int]]()
        for idle in self._idle(own):
            if not isinstance(answer, Refusal) or answer.reason not in _ROOM:
                break
            gave.append((idle, idle.kept))
            self._yield(idle)
            answer = ask()
        if isinstance(answer, Refusal):
            for session, kept in gave:
                self._hold(session, kept)
        return answer

    def _idle(self, own: Session | None) -> list[Session]:
        """Sessions that hold blocks and run no turn; the one that asks comes last."""
        running = self._manager.live
        idle = [each for each in self.open_ones.values() if each.pin and each.turn not in running]
        others = sorted((each for each in idle if each is not own), key=lambda each: each.used)
        return [*others, own] if own and own.pin else others

    def _hold(self, session: Session, most: int | None = None) -> None:
        """Hold the cached blocks of the history, or of its first `most` tokens; media stay whole.

        The blocks that the session held until now are given up after that.
        """
        before, session.pin, session.kept = session.pin, "", 0
        tokens, spans = session.history, session.spans
        if most is not None and not spans:
            tokens = tokens[: most * TOKEN_BYTES]
        if session.retention == "held" and tokens:
            self._pins += 1
            pin = f"session {self._pins}"
            session.kept = self._manager.pin(pin, tokens, namespace=session.namespace, spans=spans)
            session.pin = pin if session.kept else ""
        self._manager.unpin(before)

    def _yield(self, session: Session) -> None:
        self._manager.unpin(session.pin)
        session.pin, session.kept = "", 0

    def _forget(self) -> None:
        """After a reset nothing computed before is reused (H6): no session holds any of it."""
        for session in self.open_ones.values():
            self._yield(session)
