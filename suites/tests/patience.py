"""How long a test waits for what must happen: so long that only a hang is ended by it."""

from __future__ import annotations

import time
from collections.abc import Callable

LONG = 300.0
"""Seconds; no machine is so slow or so loaded that what works needs them."""


def until(condition: Callable[[], object], otherwise: str = "it never happened") -> None:
    """Return as soon as the condition holds."""
    deadline = time.monotonic() + LONG
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(otherwise)
        time.sleep(0.01)
