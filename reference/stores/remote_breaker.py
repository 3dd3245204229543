"""Stops asking a server that does not answer, and tries again from time to time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Breaker:
    """Opens after `failures` in a row: one call per interval may try. Closes on a success."""

    def __init__(
        self, *, failures: int, backoff_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.backoff_s = backoff_s
        self._failures = failures
        self._clock = clock
        self._in_a_row = 0
        self._retry_at = 0.0
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Return whether calls are held back."""
        return self._in_a_row >= self._failures

    def allows(self) -> bool:
        """Return whether this call may go; the caller reports its outcome."""
        with self._lock:
            if not self.is_open:
                return True
            now = self._clock()
            if now < self._retry_at:
                return False
            self._retry_at = now + self.backoff_s
            return True

    def failed(self) -> bool:
        """Count a failure; returns whether it opened the breaker."""
        with self._lock:
            was_open = self.is_open
            self._in_a_row += 1
            self._retry_at = self._clock() + self.backoff_s
            return self.is_open and not was_open

    def succeeded(self) -> bool:
        """Count a success; returns whether it closed the breaker."""
        with self._lock:
            was_open = self.is_open
            self._in_a_row = 0
            return was_open
