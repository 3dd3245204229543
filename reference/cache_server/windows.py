"""Views into the arena that know whether something was made of them (G8)."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np


class Window(NamedTuple):
    """One object's bytes.

    Slices of the view, and arrays over it, keep `base` alive, and nothing else does. (PyTorch's
    own `frombuffer` does not keep it; `torch.from_numpy(np.frombuffer(view))` does.)
    """

    view: memoryview
    base: weakref.ref[Any]


def window(arena: memoryview, offset: int, size: int) -> Window:
    """Return a view of these bytes."""
    base = np.frombuffer(arena[offset : offset + size], np.uint8)
    return Window(base.data, weakref.ref(base))


def end(windows: Iterable[Window]) -> None:
    """Invalidate views. Raises BufferError while a slice of one or an array over one is alive."""
    ended = list(windows)
    for each in ended:
        each.view.release()
    alive = sum(each.base() is not None for each in ended)
    if alive:
        raise BufferError(
            f"slices of {alive} views of the cache server, or arrays over them, are alive: delete "
            "them first"
        )
