"""Pins: cached prefixes that are held without a request (B2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvproof.harness.contract.target import Released, Request
from kvproof.harness.oracle.violation import BRUTE_FORCE, INVARIANT

if TYPE_CHECKING:
    from kvproof.harness.oracle.session import Session

_PROPERTY = "pins_hold_the_cached_prefix"


class Pins:
    """Judges the pins of one session and keeps what they hold."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def pin(self, request: Request, held: int) -> None:
        """A pin holds the longest cached prefix."""
        session, prints = self._session, self._session.prints(request)
        count, spans = len(request.tokens), request.spans
        expected = session.reuse.longest(prints, count, spans, whole=True)
        known = session.reuse.longest(prints, count, spans, known=True, whole=True)
        session.check(
            _PROPERTY,
            BRUTE_FORCE,
            known <= held <= expected,
            lambda: f"pin {request.id} holds {held} tokens, {expected} are cached",
            assertion=f"last == {expected}",
        )
        if held and request.id not in session.pins:
            session.pins[request.id] = session.ledger.needed(prints, held)
            if session.layout.separate:
                slots = (
                    session.ledger.state_blocks(prints, held, g) for g in session.layout.states
                )
                session.pinned_slots[request.id] = tuple(slot for found in slots for slot in found)

    def unpin(self, name: str, answer: Released) -> None:
        """Dropping a pin gives back what it held, once."""
        session = self._session
        table = session.pins.pop(name, ())
        session.pinned_slots.pop(name, None)
        freed = session.layout.flat(answer.blocks)
        session.check(
            _PROPERTY,
            INVARIANT,
            set(freed) == set(table),
            lambda: f"dropping pin {name} gave back {freed}, it held {table}",
            assertion=f"set(last.blocks[0]) == {set(table) or 'set()'}",
        )
