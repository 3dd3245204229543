"""Base of the events of a run record, and the operations that several of them hold."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of all events; `at` is seconds of work since the run began, without interruptions."""

    at: float = 0.0


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a shrunk history."""

    op: str
    arguments: str
    answer: str
    note: str = ""
    """Expected value, on the step that failed."""
    implied: bool = False
    """It follows from the operation before it, and is not in the op log."""
