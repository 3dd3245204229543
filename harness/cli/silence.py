"""A command that has written nothing for two seconds writes on standard error that it is at work.

It covers every verb, before and after a live display, which has lines of its own.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

FIRST, LONGEST = 2.0, 10.0
"""Seconds of silence before the first line; they double up to the longest."""
_TICK = 0.25
"""Seconds between two looks at the clock."""
_SERVERS = frozenset({"serve", "cache-server", "watch"})
"""Verbs that are silent for good reason once they have written where they listen."""


class _Silence:
    """Since when the command is silent; writers note each text."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.begun = False
        """Something was written to standard output."""
        self.elsewhere = 0
        """Displays that break silences themselves."""


_silence = _Silence()


def note_output(*, is_result: bool) -> None:
    """Note that something was written; results go to standard output."""
    _silence.since = time.monotonic()
    _silence.begun = _silence.begun or is_result


@contextmanager
def left_to_a_display() -> Iterator[None]:
    """Write no line while a live display is there."""
    _silence.elsewhere += 1
    try:
        yield
    finally:
        _silence.elsewhere -= 1
        note_output(is_result=False)


@contextmanager
def broken_silence(verb: str) -> Iterator[None]:
    """Break the silences of a verb in the block."""
    global _silence
    _silence = _Silence()
    over = threading.Event()
    ticker = threading.Thread(target=_watch, args=(verb, over), daemon=True)
    with suppress(RuntimeError):  # no thread can be started: the verb itself names the limit
        ticker.start()
    try:
        yield
    finally:
        over.set()
        if ticker.ident is not None:
            ticker.join()


def _watch(verb: str, over: threading.Event) -> None:
    began, since, patience = time.monotonic(), _silence.since, FIRST
    while not over.wait(_TICK):
        if verb in _SERVERS and _silence.begun:
            return
        if _silence.since != since:
            since, patience = _silence.since, FIRST
        silent = time.monotonic() - since
        if silent >= patience and not _silence.elsewhere:
            patience = silent + min(silent, LONGEST)
            new = f" (nothing new for {silent:.0f} s)" if _silence.begun else ""
            sys.stderr.write(f"{verb}: at work for {time.monotonic() - began:.0f} s{new}\n")
            _silence.since = since
