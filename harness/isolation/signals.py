"""Ctrl-C and its kin, raised again where Python has dropped them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ask a command to end: Ctrl-C, a service manager, a terminal that was closed."""

_AGAIN = 0.01
"""Seconds until an interrupt that was dropped is raised again."""


def listen(*signals: signal.Signals) -> None:
    """Turn signals into KeyboardInterrupt, except those that the caller's shell has ignored.

    An exception that comes up in a weak reference's callback, a finaliser or a callback of the
    garbage collector goes nowhere, and Hypothesis keeps all three busy.
    """
    for each in (*signals, signal.SIGALRM):
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, _interrupt)
    sys.unraisablehook = _unraisable


@contextmanager
def held() -> Iterator[None]:
    """Let interrupts wait until the block has ended; in the main thread."""
    received: list[int] = []
    names = (*ENDS, signal.SIGALRM)
    before = {each: signal.getsignal(each) for each in names}
    before = {each: handler for each, handler in before.items() if handler is not signal.SIG_IGN}
    try:
        for each in before:
            signal.signal(each, lambda number, _: received.append(number))
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in received[:1]:
            signal.raise_signal(number)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, later where the hook runs: it goes nowhere there, too."""
    while frame is not None:
        if frame.f_code is _unraisable.__code__:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _unraisable(dropped: UnraisableHookArgs) -> None:
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
    else:
        sys.__unraisablehook__(dropped)
