"""Scheduler: the requests of a step, and their tokens (C1-C3, C6, C7, X5).

    schedule   running requests grow, oldest first; then the line is admitted, oldest first
    complete   tokens are appended, drafts judged, answers finished

*Fairness.* Requests are admitted in order of arrival; none overtakes. `share_budget`
divides the tokens of a step, so neither long nor short prompts wait for the end of the others.
A step never splits a media span, so a request may compute more than its share. The surplus
lengthens the step. It never comes out of the share of another request, running or first in line:
a wait that depends on the spans of younger requests is not bounded by rule C1.

*Bound.* A request that cannot grow takes the blocks of younger ones, the youngest first, and
never those of older ones. The oldest computes a token in every step in which it is ready, so with
d steps in flight a request is done after at most 2 (d + 1) steps for each token of its own and
of the older requests.

Nothing depends on a clock, on hashes or on addresses (C7): `decisions` is equal for equal input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from numpy.typing import ArrayLike

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import LOADING, Admission, AdmitRequest, Refusal
from kvproof.reference.cache.sessions import Sessions
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.engine.request_queue import (
    RUNNING,
    Prompt,
    ScheduledRequest,
    WaitingQueue,
    routed,
)
from kvproof.reference.model.interface import Sample, Work


def share_budget(
    tokens: int, ready: Sequence[ScheduledRequest], head: ScheduledRequest | None
) -> dict[str, int]:
    """Return the tokens for each ready request, oldest first; the rest is the share of `head`."""
    count = len(ready) + (head is not None)
    if count > tokens:
        order = [*ready[:1], *sorted(ready[1:], key=_waited_longest)]
        tokens -= head is not None and all(head.rank < request.rank for request in ready)
    else:
        order = sorted(ready, key=lambda request: request.wanted)
    shares = {}
    for request in order:
        share = min(request.wanted, max(1, tokens // count)) if tokens > 0 else 0
        shares[request.id] = share
        tokens, count = tokens - share, count - 1
    return shares


def arrival_order(request: ScheduledRequest) -> int:
    """Sort requests, the oldest first."""
    return request.rank


def _waited_longest(request: ScheduledRequest) -> tuple[int, int]:
    return request.last_step, request.rank


class Decision(NamedTuple):
    """Decision of the scheduler after `step` steps; `detail` holds the numbers."""

    step: int
    verb: str
    request_id: str
    detail: tuple[int | str, ...] = ()


class ScheduledWork(NamedTuple):
    """Tokens that one step computes for one request, in one of its admissions."""

    work: Work
    request: ScheduledRequest
    admission: int

    @property
    def current(self) -> bool:
        """Return whether the result is still needed."""
        return self.request.status == RUNNING and self.request.admissions == self.admission


class Scheduler:
    """Owns the requests of one cache manager. Single-threaded."""

    def __init__(
        self, cache: CacheManager, config: EngineConfig, sessions: Sessions | None = None
    ) -> None:
        """`sessions` make room for requests: idle ones give their blocks up before any waits."""
        self.cache = cache
        self.config = config
        self._room = sessions or cache
        self.requests: dict[str, ScheduledRequest] = {}
        """Waiting, running and preempted ones."""
        self.running: dict[str, ScheduledRequest] = {}
        self.queue = WaitingQueue()
        self.steps: dict[int, list[ScheduledWork]] = {}
        self.decisions: list[Decision] = []
        self._moved_rows: dict[int, dict[str, ArrayLike]] = {}
        self._step = self._arrived = 0
        self.weights = 0
        """Version of the weights: resets so far (H6)."""
        self._starved = False
        """Whether the head of the queue found no room when it last asked."""
        self._short = ""
        """A running request that found no room last time; no younger one may take that room."""

    # --- arrival and departure ---

    def add(self, prompt: Prompt) -> Refusal | None:
        """Put a request in the queue; one that can never fit is refused with the numbers (B8)."""
        request = ScheduledRequest(prompt, self.next_rank())
        refusal = self.cache.capacity.fits(prompt.most_tokens - 1, prompt.spans)
        if refusal:
            request.move("refuse")
            self._note("refuse", prompt.id, *refusal)
            return refusal
        self.wait(request)
        return None

    def next_rank(self) -> int:
        """Number the requests in order of arrival."""
        self._arrived += 1
        return self._arrived

    def wait(self, request: ScheduledRequest) -> None:
        """Put a request that holds nothing in the queue."""
        self.requests[request.id] = request
        self.queue.push(request)

    def join(self, request: ScheduledRequest, step: int, rows: ArrayLike | None) -> None:
        """Let a request run whose content and expert `rows` are moved in by `step` (C5)."""
        self.requests[request.id] = self.running[request.id] = request
        self.steps[step] = []
        if rows is not None:
            self._moved_rows[step] = {request.id: rows}
        self._note("move_in", request.id, request.computed)

    def cancel(self, request_id: str) -> bool:
        """Cancel a request in any status; idempotent (C6). Returns whether it existed."""
        request = self.requests.get(request_id)
        if request is not None:
            self.leave(request, "cancel")
        return request is not None

    def leave(self, request: ScheduledRequest, event: str) -> None:
        """Let a request go for good: `cancel`, `finish` or `move`."""
        running = request.status == RUNNING
        request.move(event)
        del self.requests[request.id]
        self._note(event, request.id)
        if running:
            self._release(request)

    def preempt(self, request: ScheduledRequest, *, reason: str = "asked") -> None:
        """Take every block of a request; it waits again, where it stood by arrival (C3)."""
        request.move("preempt")
        self._note("preempt", request.id, reason, request.computed, request.in_flight)
        self._release(request)
        self.queue.push(request)

    def _release(self, request: ScheduledRequest) -> None:
        del self.running[request.id]
        self.cache.release(request.id)
        request.stop_running()
        self._starved = False
        self._short = "" if self._short == request.id else self._short

    def _note(self, verb: str, request_id: str, *detail: int | str) -> None:
        self.decisions.append(Decision(self._step, verb, request_id, detail))

    # --- one step ---

    def schedule(self) -> tuple[int, list[Work]] | None:
        """Decide a step; None if nothing can be computed now."""
        step = self._step = self.cache.begin_step()
        scheduled = self.steps[step] = []
        self._preempt_for_head()
        before = len(self.decisions)
        left = self._grow()
        if all(decision.verb != "preempt" for decision in self.decisions[before:]):
            self._admit(left)
        if scheduled:
            self.steps[step] = self._with_tables(scheduled)
            return step, [each.work for each in self.steps[step]]
        del self.steps[step]
        self.cache.end_step(step)
        return None

    def _with_tables(self, scheduled: Sequence[ScheduledWork]) -> list[ScheduledWork]:
        """Let the step read the tables of now: later ones may differ."""
        batch = self.cache.batch([each.request.id for each in scheduled])
        return [
            each._replace(work=each.work._replace(tables=tuple(table[row] for table in batch)))
            for row, each in enumerate(scheduled)
        ]

    def _preempt_for_head(self) -> None:
        """Preempt the youngest if an older request, once preempted or moved in, waits for it."""
        head = self.queue.head()
        full = len(self.running) >= self.cache.config.max_requests
        victim = self._victim(head) if head and self.running else None
        if victim and (full or self._starved):
            self.preempt(victim, reason="older")

    def _grow(self) -> int:
        """Let running requests compute; returns the tokens for the line, the share of its head."""
        ready = [r for r in sorted(self.running.values(), key=arrival_order) if r.wanted]
        left = self.config.max_batch_tokens
        head = None if self._starved else self._next_in_line()
        shares = share_budget(left, ready, head)
        kept = left - sum(shares.values()) if head else 0
        for request in ready:
            if request.status == RUNNING and shares[request.id]:
                left -= self._extend(request, shares[request.id])
        return max(left, kept)

    def _next_in_line(self) -> ScheduledRequest | None:
        """Return the head of the line, unless all places are taken or an older request is short."""
        head, short = self.queue.head(), self.running.get(self._short)
        full = len(self.running) >= self.cache.config.max_requests
        waits = head is None or full or (short is not None and short.rank < head.rank)
        return None if waits else head

    def _extend(self, request: ScheduledRequest, share: int) -> int:
        """Compute up to `share` more tokens; returns how many, 0 if it has to wait for room."""
        answer = self._try_to_extend(request, share)
        while isinstance(answer, Refusal) and (victim := self._victim(request)):
            in_flight = victim.in_flight
            self.preempt(victim, reason="room")
            if in_flight:
                break  # its blocks come back when its steps have ended
            answer = self._try_to_extend(request, share)
        while isinstance(answer, Refusal) and share > 1 and not self._victim(request):
            share //= 2  # a shorter step needs less at once, and lets windows move on
            answer = self._try_to_extend(request, share)
        if isinstance(answer, Refusal):
            self._note("wait", request.id, *answer)
        if self._short in ("", request.id):
            self._short = request.id if isinstance(answer, Refusal) else ""
        return 0 if isinstance(answer, Refusal) else answer.stop - answer.start

    def _victim(self, request: ScheduledRequest) -> ScheduledRequest | None:
        youngest = max(self.running.values(), key=arrival_order)
        return youngest if youngest.rank > request.rank else None

    def _try_to_extend(self, request: ScheduledRequest, share: int) -> Admission | Refusal:
        drafts = request.drafts[: max(0, share - request.left)]
        new = request.tokens[request.known :]
        compute = None if drafts else share
        answer = self._room.extend(request.id, new, compute=compute, drafts=drafts)
        if isinstance(answer, Refusal) and drafts:
            drafts = ()
            answer = self._room.extend(request.id, new, compute=share)
        if isinstance(answer, Admission):
            self._start(request, answer, drafts)
        return answer

    def _start(self, request: ScheduledRequest, answer: Admission, drafts: tuple[int, ...]) -> None:
        self._note("compute", request.id, answer.start, answer.stop, len(drafts))
        propose = self.config.num_drafts
        work = request.work(answer, drafts, propose)
        request.start(work, self._step)
        self.steps[self._step].append(ScheduledWork(work, request, request.admissions))

    def _admit(self, left: int) -> None:
        """Admit waiting requests in order of arrival, within tokens and room."""
        while left > 0 and (request := self._next_in_line()):
            answer = self._try_to_admit(request, left)
            self._starved = isinstance(answer, Refusal) and answer.reason != LOADING
            if isinstance(answer, Refusal):
                self._note("wait", request.id, *answer)
                if not self._starved or not self._preempt_younger(request):
                    return
                continue
            self.queue.pop()
            request.admit(self.weights)
            self.running[request.id] = request
            self._note("admit", request.id, answer.hit)
            self._start(request, answer, ())
            left -= answer.stop - answer.start

    def _preempt_younger(self, request: ScheduledRequest) -> bool:
        victim = self._victim(request) if self.running else None
        if victim is None or victim.in_flight or victim.last_step == self._step:
            return False
        self.preempt(victim, reason="older")
        return True

    def _try_to_admit(self, request: ScheduledRequest, left: int) -> Admission | Refusal:
        """Admit; if no other request holds blocks, the shortest step is enough (C3)."""
        answer = self._admit_within(request, left)
        alone = not self.running and len(self.steps) == 1
        return self._admit_within(request, 1) if isinstance(answer, Refusal) and alone else answer

    def _admit_within(self, request: ScheduledRequest, compute: int) -> Admission | Refusal:
        prompt = request.prompt
        return self._room.admit(
            AdmitRequest(
                request.id,
                request.tokens,
                prompt.namespace,
                prompt.spans,
                compute,
                prompt.access,
                resumed=request.admissions > 0,
            )
        )

    def complete(self, step: int, samples: Mapping[str, Sample]) -> list[ScheduledRequest]:
        """Apply the result of the oldest step; returns the requests that got tokens."""
        current = [each for each in self.steps.pop(step) if each.current]
        judged = {each.request.id: samples[each.request.id].accepted for each in current}
        rows = self._moved_rows.pop(step, {})
        if self.cache.experts:
            rows |= {each.request.id: samples[each.request.id].experts for each in current}
        self.cache.end_step(step, accepted=judged, experts=rows)
        for each in current:
            each.request.take(each.work, samples[each.request.id])
            if each.work.drafts:
                accepted = judged[each.request.id]
                self._note("judge", each.request.id, accepted, each.work.drafts, each.work.stop)
            if each.request.done:
                each.request.experts = routed(self.cache, each.request)
                self.leave(each.request, "finish")
        return [each.request for each in current if each.work.samples]
