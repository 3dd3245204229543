"""Steps in flight, and what has to wait until they are done (B6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvproof.reference.requests import Live


class Steps:
    """Numbers steps from 1; they end in any order."""

    def __init__(self) -> None:
        self.newest = 0
        self._scheduled: dict[int, list[tuple[Live, int]]] = {}
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def begin(self) -> int:
        """Open a step; what is scheduled from now on runs in it."""
        self.newest += 1
        self._scheduled[self.newest] = []
        return self.newest

    def schedule(self, request: Live, stop: int) -> None:
        """Let the newest step compute `request` up to token `stop`."""
        request.computed, request.last_step = stop, self.newest
        self._scheduled[self.newest].append((request, stop))

    def end(self, step: int) -> list[tuple[Live, int]]:
        """Close a step; returns its requests and how far each was computed."""
        return self._scheduled.pop(step)

    def after(self, step: int, action: Callable[[], None]) -> None:
        """Do `action` once `step` has ended: now, if it has."""
        if step in self._scheduled:
            self._waiting.setdefault(step, []).append(action)
        else:
            action()

    def lift(self, step: int) -> None:
        """Do what waited for `step`."""
        for action in self._waiting.pop(step, ()):
            action()
