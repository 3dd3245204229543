"""Cost in executed lines, not in time: the same on every machine and at any load."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def lines_of(work: Callable[[], T]) -> tuple[T, int]:
    """Return the result of `work`, and the number of Python lines that ran for it."""
    count = 0

    def line(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()  # callbacks of the garbage collector would be counted too
    sys.settrace(line)
    try:
        done = work()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return done, count
