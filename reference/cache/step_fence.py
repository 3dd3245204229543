"""Steps in flight, and what has to wait until they are done (B6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from kvproof.reference.cache.request_state import Live
    from kvproof.reference.core.checkpoint import Checkpoint


class Scheduled(Struct, frozen=True, gc=False):
    """A step computes `request` up to token `stop`, the last `drafts` of them on trial (X5)."""

    request: Live
    stop: int
    drafts: int
    saves: Sequence[Checkpoint]
    """Where it saves states."""


class Steps:
    """Numbers steps from 1. They run one after the other, so they end oldest first."""

    def __init__(self) -> None:
        self.newest = 0
        self.open = False
        """Whether the newest step is in flight: something can be scheduled."""
        self._scheduled: dict[int, list[Scheduled]] = {}
        """Steps in flight, oldest first."""
        self.runs = self._scheduled.__contains__
        """Tells whether a step is in flight."""
        self.waiting: dict[int, list[Callable[[], None]]] = {}
        """Step -> what is done once it has ended."""

    def begin(self) -> int:
        """Open a step; what is scheduled from now on runs in it."""
        self.newest = newest = self.newest + 1
        self._scheduled[newest] = []
        self.open = True
        return newest

    def check_open(self) -> None:
        """Raise RuntimeError if no step is open: nothing could be scheduled."""
        if not self.open:
            raise RuntimeError(f"step {self.newest} has ended; call begin_step first")

    def schedule(self, request: Live, stop: int, saves: Sequence[Checkpoint] = ()) -> None:
        """Let the newest step compute `request` up to token `stop`."""
        request.computed = stop
        request.last_step = newest = self.newest
        self._scheduled[newest].append(Scheduled(request, stop, request.drafts, saves))

    def running(self, step: int) -> list[Scheduled]:
        """Return what runs in a step; nothing if it is not in flight."""
        return self._scheduled.get(step, [])

    def end(self, step: int) -> list[Scheduled]:
        """Close the oldest step; returns what ran in it.

        Raises RuntimeError for any other step, unless nothing was scheduled in it: what it
        computed may follow on what an older one has still to compute.
        """
        oldest = next(iter(self._scheduled), None)
        if step != oldest and self._scheduled.get(step) != []:
            raise RuntimeError(f"step {step} cannot end: the oldest in flight is {oldest}")
        if step == self.newest:
            self.open = False
        return self._scheduled.pop(step)

    def after(self, step: int, action: Callable[[], None]) -> None:
        """Do `action` once `step`, which is in flight, has ended."""
        self.waiting.setdefault(step, []).append(action)

    def lift(self, step: int) -> None:
        """Do what waited for a step that has ended."""
        for action in self.waiting.pop(step, ()):
            action()
