"""The frame of a target: requests that run, numbered steps, and verbs that an engine lacks.

A subclass schedules, with a number from `_numbered` for each step, and returns the tables where a
step or a request ends. Engine environment only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from kvproof.harness.adapters.refusals import off
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Completed, Refused, Released, Scheduled, Table
from kvproof.harness.errors import UnsupportedVerb

Tables = tuple[Table, ...]


class Live(NamedTuple):
    """A running request."""

    id: str
    native: Any
    """The engine's own request."""


class Step(NamedTuple):
    """A scheduled step, until it completes."""

    id: str
    """Request of the step; another one may have this id when the step completes."""
    native: Any
    details: Any = None
    experts: tuple[int, ...] = ()
    """Rows with which it completes."""


class EngineTarget(ABC):
    """One cache manager of an engine, and the requests that a scheduler would hold."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._running: dict[str, Any] = {}
        self._steps: dict[int, Step] = {}
        self._last_step = 0

    def _numbered(self, request_id: str, native: Any, details: Any = None) -> int:
        """Return the number of a step that was scheduled."""
        self._last_step += 1
        self._steps[self._last_step] = Step(request_id, native, details)
        return self._last_step

    def extend(
        self,
        request_id: str,
        tokens: tuple[int, ...] = (),
        compute: int | None = None,
        drafts: tuple[int, ...] = (),
    ) -> Scheduled | Refused:
        """Schedule the next step of a running request. Raises UnsupportedVerb for drafts."""
        if drafts:
            raise UnsupportedVerb("extend with drafts", self.profile.unsupported["drafts"])
        native = self._running.get(request_id)
        if native is None:
            return Refused("invalid", detail=f"no running request {request_id!r}")
        return self._extend(Live(request_id, native), tokens, compute)

    @abstractmethod
    def _extend(
        self, live: Live, tokens: tuple[int, ...], compute: int | None
    ) -> Scheduled | Refused:
        """Schedule the next chunk, or decoded tokens; a refusal takes the new tokens back."""

    def complete(
        self, step: int, accepted: int | None = None, experts: tuple[int, ...] = ()
    ) -> Completed:
        """Complete a step; if its request still runs, with its tables.

        Raises UnsupportedVerb for drafts, and for rows of experts that are not kept.
        """
        if accepted is not None or (experts and "experts" in self.profile.unsupported):
            raise UnsupportedVerb("complete with drafts", self.profile.unsupported["drafts"])
        done = self._steps.pop(step)._replace(experts=experts)
        if self._running.get(done.id) is not done.native:
            return Completed(step)
        return Completed(step, *self._complete(done))

    @abstractmethod
    def _complete(self, done: Step) -> tuple[Tables, Tables]:
        """Return the blocks and the kernels' tables of a request after its step."""

    def finish(self, request_id: str) -> Released:
        """Release a request that has all its tokens."""
        return self._ended(request_id, self._finish)

    def cancel(self, request_id: str) -> Released:
        """Release a request that its client dropped."""
        return self._ended(request_id, self._cancel)

    def preempt(self, request_id: str) -> Released:
        """Take every block of a request."""
        return self._ended(request_id, self._preempt)

    def _ended(self, request_id: str, end: Callable[[Live], Tables]) -> Released:
        native = self._running.pop(request_id, None)
        return Released() if native is None else Released(end(Live(request_id, native)))

    @abstractmethod
    def _finish(self, live: Live) -> Tables:
        """End a request; returns the tables that it had."""

    def _cancel(self, live: Live) -> Tables:
        """Do the same, where the engine makes no difference."""
        return self._finish(live)

    def _preempt(self, live: Live) -> Tables:
        """Do the same, where the engine makes no difference."""
        return self._finish(live)

    pin = off("pin", "pins")
    unpin = off("unpin", "pins")
    batch = off("batch")
    experts = off("experts")
    evict = off("evict")
    lookup = off("lookup")

    def close(self) -> None:  # noqa: B027 - a default: engines with resources override it
        """Nothing is held outside the process's memory."""
