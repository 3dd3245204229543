"""Ctrl-C and its kin, raised again where Python has dropped them."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

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


def _interrupt(_: int, frame: FrameType | None) -> None:
    del frame
    raise KeyboardInterrupt


def _unraisable(dropped: UnraisableHookArgs) -> None:
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
    else:
        sys.__unraisablehook__(dropped)
