"""Requests that an engine serves, their life (C1), and the queue in which they wait."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import Admission
from kvproof.reference.cache.routed_experts import Recorded
from kvproof.reference.core.cache_policy import ALLOWED, Access
from kvproof.reference.core.identity import DEFAULT_NAMESPACE, Namespace, Span
from kvproof.reference.core.lifecycle import Transitions
from kvproof.reference.model.interface import Sample, Work

ExpertRow: TypeAlias = npt.NDArray[np.integer[Any]]
"""[1, layers, ranks]"""

WAITING, RUNNING, PREEMPTED = "waiting", "running", "preempted"
FINISHED, CANCELLED, MOVED = "finished", "cancelled", "moved"

REQUEST_LIFE = Transitions(
    "request",
    {
        (WAITING, "admit"): RUNNING,
        (WAITING, "refuse"): FINISHED,
        (WAITING, "cancel"): CANCELLED,
        (WAITING, "move"): MOVED,
        (RUNNING, "preempt"): PREEMPTED,
        (RUNNING, "finish"): FINISHED,
        (RUNNING, "cancel"): CANCELLED,
        (RUNNING, "move"): MOVED,
        (PREEMPTED, "admit"): RUNNING,
        (PREEMPTED, "cancel"): CANCELLED,
        (PREEMPTED, "move"): MOVED,
    },
)
"""Waiting and preempted requests hold no block. Preempted ones wait where they stood by arrival."""


@dataclass(frozen=True)
class Prompt:
    """Request of a client."""

    id: str
    tokens: tuple[int, ...]
    max_new_tokens: int
    namespace: Namespace = DEFAULT_NAMESPACE
    spans: tuple[Span, ...] = ()
    access: Access = ALLOWED

    @property
    def most_tokens(self) -> int:
        """Tokens of prompt and answer; the last one is never computed."""
        return len(self.tokens) + self.max_new_tokens


class ScheduledRequest:
    """A request on its way through the scheduler."""

    __slots__ = (
        "admissions", "computed", "drafting", "drafts", "experts", "in_flight", "known", "last_row",
        "last_step", "prompt", "rank", "status", "tokens", "weights",
    )  # fmt: skip

    def __init__(self, prompt: Prompt, rank: int) -> None:
        self.prompt = prompt
        self.rank = rank
        """Order of arrival; the lowest is served first and never preempted for a higher one."""
        self.status = REQUEST_LIFE.start
        self.tokens = list(prompt.tokens)
        self.admissions = 0
        self.experts: Recorded | None = None
        """Rows of a finished request, if it requested them (R2)."""
        self.stop_running()

    def stop_running(self) -> None:
        """Forget what only holds while it runs."""
        self.known = self.computed = 0
        """Tokens known to the cache manager, and tokens scheduled to be computed."""
        self.in_flight = self.last_step = 0
        """Steps that compute it and have not ended; the newest of them."""
        self.drafting = False
        """Whether the newest step verifies drafts; the next token is unknown until it ends (X5)."""
        self.drafts: tuple[int, ...] = ()
        self.weights = 0
        self.last_row: ExpertRow | None = None

    def move(self, event: str) -> None:
        """Change the status. Raises IllegalMove, naming both states."""
        self.status = REQUEST_LIFE.move(self.status, event)

    @property
    def id(self) -> str:
        """Name given by the client."""
        return self.prompt.id

    @property
    def answer(self) -> tuple[int, ...]:
        """Tokens generated so far."""
        return tuple(self.tokens[len(self.prompt.tokens) :])

    @property
    def left(self) -> int:
        """Tokens that are known and not computed."""
        return len(self.tokens) - self.computed

    @property
    def wanted(self) -> int:
        """Tokens, drafts included, that a step could compute now; 0 while an answer is awaited."""
        if self.drafting:
            return 0
        return self.left + len(self.drafts) if self.left else 0

    @property
    def done(self) -> bool:
        """Return whether the answer is complete."""
        return len(self.tokens) >= self.prompt.most_tokens

    def admit(self, weights: int) -> None:
        """Start to run; later tokens are computed with these weights."""
        self.move("admit")
        self.admissions += 1
        self.weights = weights

    def work(self, answer: Admission, drafts: tuple[int, ...], propose: int) -> Work:
        """Describe a step for the model; its tables follow when the whole step is decided."""
        known = len(self.tokens) + len(drafts)
        return Work(
            request_id=self.id,
            tokens=[*self.tokens, *drafts] if drafts else self.tokens,
            known=known,
            namespace=self.prompt.namespace,
            spans=self.prompt.spans,
            weights=self.weights,
            start=answer.start,
            stop=answer.stop,
            tables=(),
            state=answer.state,
            encode=answer.encode,
            drafts=len(drafts),
            propose=propose,
            copies=answer.copies,
        )

    def start(self, work: Work, step: int) -> None:
        """A step computes it."""
        self.known, self.computed = len(self.tokens), work.stop
        self.in_flight, self.last_step = self.in_flight + 1, step
        self.drafting, self.drafts = bool(work.drafts), ()

    def take(self, work: Work, sample: Sample) -> None:
        """Append the result of a step: the accepted drafts, and the token after them (X5)."""
        self.in_flight -= 1
        kept = work.stop - work.start - work.drafts + sample.accepted
        self.last_row = sample.experts[kept - 1 : kept]
        if sample.token is None:
            return
        first = work.known - work.drafts
        self.tokens += [*work.tokens[first : first + sample.accepted], sample.token]
        self.known = self.computed = len(self.tokens) - 1
        self.drafting = False
        self.drafts = sample.drafts[: max(0, self.prompt.most_tokens - len(self.tokens) - 1)]


class WaitingQueue:
    """Requests that hold nothing, in order of arrival; leaving from the middle is lazy."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, ScheduledRequest]] = []

    def push(self, request: ScheduledRequest) -> None:
        """Put a request at its place."""
        heapq.heappush(self._heap, (request.rank, request))

    def pop(self) -> None:
        """Take the head out."""
        heapq.heappop(self._heap)

    def head(self) -> ScheduledRequest | None:
        """Return the request that has waited longest."""
        while self._heap and self._heap[0][1].status not in (WAITING, PREEMPTED):
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None


def routed(cache: CacheManager, request: ScheduledRequest) -> Recorded | None:
    """Return the rows of the computed tokens of a running request; None if none are kept.

    The last token of the request is left out until it is known to the cache manager.
    """
    if cache.experts is None:
        return None
    count = request.computed
    rows, missing = cache.expert_rows(request.id)
    missing = tuple((start, min(stop, count)) for start, stop in missing if start < count)
    if len(rows) < count:
        assert request.last_row is not None
        rows = np.concatenate([rows, request.last_row.astype(rows.dtype)])
    return Recorded(rows[:count], missing)
