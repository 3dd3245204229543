"""A log that an attack does not fill: equal messages are written a few times a minute."""

from __future__ import annotations

import logging
import time
from collections import Counter

MOST = 5
"""Messages of one kind in a window."""
WINDOW = 60.0
"""Seconds."""


class FewOfAKind(logging.Filter):
    """Passes the first messages of each kind in each window."""

    def __init__(self) -> None:
        super().__init__()
        self._began = 0.0
        self._seen: Counter[tuple[str, int, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a message is written; a client's mistake has no traceback."""
        error = record.exc_info[1] if record.exc_info else None
        if type(error).__module__.partition(".")[0] == "h11":
            record.msg, record.args, record.exc_info = "a client broke HTTP: %s", (error,), None
        if time.monotonic() - self._began > WINDOW:
            self._began = time.monotonic()
            self._seen.clear()
        kind = (record.name, record.lineno, str(record.msg))
        self._seen[kind] += 1
        if self._seen[kind] == MOST:
            record.msg = f"{record.msg} (more of this kind is left out for a minute)"
        return self._seen[kind] <= MOST
