"""What every event of a run record is built on."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of all events; `at` is seconds since the run started."""

    at: float = 0.0
