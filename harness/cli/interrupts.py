"""Ctrl-C and its kin, raised where Python does not drop them."""

from __future__ import annotations

import gc
import signal
from types import FrameType

_AGAIN = 0.01
"""Seconds until a signal that came at a bad moment is raised."""


def listen(*signals: signal.Signals) -> None:
    """Turn signals into KeyboardInterrupt, except those that the caller's shell has ignored."""
    for each in (*signals, signal.SIGALRM):
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, _interrupt)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Wait where exceptions are printed and forgotten: Hypothesis watches the collector."""
    deaf = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame:
        if frame.f_code in deaf or frame.f_code.co_name == "__del__":
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
            return
        frame = frame.f_back
    raise KeyboardInterrupt
