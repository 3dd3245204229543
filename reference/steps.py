"""Steps in flight, and what has to wait until they are done (B6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvproof.reference.requests import Live


class Steps:
    """Numbers steps from 1. They may end in any order and take effect in the order they began in.

    A step that ends before an older one changes nothing yet: what it computed may follow on what
    the older one has still to compute, and the older one may still read what it would free.
    """

    def __init__(self) -> None:
        self.newest = 0
        self._scheduled: dict[int, list[tuple[Live, int]]] = {}
        """Steps in flight, oldest first."""
        self._early: set[int] = set()
        """Steps that have ended before an older one."""
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def begin(self) -> int:
        """Open a step; what is scheduled from now on runs in it."""
        self.newest += 1
        self._scheduled[self.newest] = []
        return self.newest

    def check_open(self) -> None:
        """Raise RuntimeError if no step is open: nothing could be scheduled."""
        if self.newest not in self._scheduled or self.newest in self._early:
            raise RuntimeError(f"step {self.newest} has ended; call begin_step first")

    def schedule(self, request: Live, stop: int) -> None:
        """Let the newest step compute `request` up to token `stop`."""
        request.computed, request.last_step = stop, self.newest
        self._scheduled[self.newest].append((request, stop))

    def end(self, step: int) -> list[tuple[Live, int]]:
        """Close a step; returns the requests that are now computed, and how far each is."""
        if step not in self._scheduled or step in self._early:
            raise RuntimeError(f"step {step} is not in flight")
        self._early.add(step)
        computed: list[tuple[Live, int]] = []
        while (oldest := next(iter(self._scheduled), 0)) in self._early:
            self._early.remove(oldest)
            computed += self._scheduled.pop(oldest)
        return computed

    def after(self, step: int, action: Callable[[], None]) -> None:
        """Do `action` once `step` and all older ones have ended: now, if they have."""
        if step in self._scheduled:
            self._waiting.setdefault(step, []).append(action)
        else:
            action()

    def lift(self) -> None:
        """Do what waited for steps that are done by now."""
        for step in [step for step in self._waiting if step not in self._scheduled]:
            for action in self._waiting.pop(step):
                action()
