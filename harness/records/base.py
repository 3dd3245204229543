"""Base of the events of a run record."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of all events; `at` is seconds of work since the run began, without interruptions."""

    at: float = 0.0
