"""Callbacks of a cache manager: for tiers below it, explanations and metrics (C8, V2, V3).

A manager without callbacks pays one look at an empty list for each event. Callbacks of one list
run in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from kvproof.reference.cache.request_state import Admission, AdmitRequest, Refusal, RequestState

Answer: TypeAlias = Admission | Refusal


class CacheHooks:
    """Lists of callbacks, one for each event."""

    __slots__ = ("admitted", "before_admission", "extended", "looked_up", "reset", "step_begun",
                 "step_ended")  # fmt: skip

    def __init__(self) -> None:
        self.before_admission: list[Callable[[AdmitRequest, RequestState], Refusal | None]] = []
        """The request is well formed and nothing is decided; a refusal is its answer (B4)."""
        self.admitted: list[Callable[[AdmitRequest, Answer], None]] = []
        """An admission has its answer."""
        self.extended: list[Callable[[str, Answer], None]] = []
        """A further step of the request of this id has its answer."""
        self.looked_up: list[Callable[[RequestState], int]] = []
        """A lookup: each returns the tokens that the request could hit with its help (T1)."""
        self.step_begun: list[Callable[[int], None]] = []
        self.step_ended: list[Callable[[int, Mapping[str, int]], None]] = []
        """(step, accepted drafts by request) as given to `end_step`."""
        self.reset: list[Callable[[], None]] = []
        """A new epoch has begun (H6)."""
