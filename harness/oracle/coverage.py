"""Which situations a history went through: without them a pass proves nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import (
    Completed,
    Namespace,
    Refused,
    Released,
    Request,
    Scheduled,
    Span,
    Table,
)
from kvproof.harness.oracle.coverage_groups import SpecialSituations
from kvproof.harness.oracle.request_state import NULL_BLOCK, Live

if TYPE_CHECKING:
    from kvproof.harness.oracle.session import Session


class Situations:
    """Counts situations of one session; `before` looks at the ledger, `after` at the answer."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.seen: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        self._namespaces: set[Namespace] = set()
        self._past: list[Request] = []
        """Requests admitted so far, oldest first."""
        self._leaving: list[Request] = []
        """What a reset is about to forget: cached prefixes of those requests."""
        self._gone: list[Request] = []
        """What resets have forgotten."""
        self._evicted = 0
        self._preempted: dict[str, Table] = {}
        """Blocks of requests when they were preempted."""
        self._size = session.layout.unit
        self._special = SpecialSituations(session, self._saw)

    def _saw(self, situation: str, happened: object = True) -> None:  # noqa: FBT002 - the condition
        if happened:
            self.seen[situation] += 1

    def forget(self) -> None:
        """Drop the requests seen so far."""
        self._past.clear()
        self._gone.clear()

    def before(self, operation: ops.Operation) -> None:
        """Look at what the operation is about to meet."""
        session = self._session
        if isinstance(operation, ops.Admit) and operation.request.tokens:
            self._meets(operation.request)
        if isinstance(operation, (ops.Finish, ops.Cancel, ops.Preempt)):
            live = session.live.get(operation.id)
            self._saw("an unknown request is released", live is None)
            self._saw("a request is released while its step is in flight", live and live.steps)
            if isinstance(operation, ops.Preempt) and live is not None:
                self._preempted[operation.id] = live.blocks
        if isinstance(operation, ops.Reset):
            self._saw("a reset while requests hold blocks", session.live)
            self._saw("a reset of a filled cache", session.ledger.cached)
            self._leaving = [kept for old in self._past if (kept := self._cached(old)).tokens]
        if isinstance(operation, ops.Extend):
            live = session.live[operation.id]
            self._saw("a partial last block is extended", live.computed % self._size)
        self._evicted = len(session.ledger.cached)

    def _meets(self, request: Request) -> None:
        """Ask what an equal request in another namespace, epoch or medium would have hit."""
        session, limit = self._session, len(request.tokens) - 1
        own = session.reuse.longest(session.prints(request), limit, request.spans)
        for space in self._namespaces - {request.namespace}:
            other = session.prints(replace(request, namespace=space))
            self._saw(
                "a cached prompt comes back in another namespace",
                session.reuse.longest(other, limit, request.spans) > own,
            )
        self._namespaces.add(request.namespace)
        self._saw("a cached prefix meets a request that may not read", own and not request.read)
        self._saw(
            "a prompt comes back that was not stored",
            session.running.was_lost("not stored", request, own),
        )
        if request.spans:
            self._saw(
                "a cached prompt comes back with the same spans", own > request.spans[0].start
            )
            self._saw(
                "a cached prompt comes back with another span", self._other_span(request, own)
            )
        self._saw("a prompt of an earlier epoch comes back", self._earlier_epoch(request, own))
        self._saw("an equal prompt arrives while its twin is in flight", self._twin(request))
        self._special.meets(request, own)

    def _other_span(self, request: Request, own: int) -> bool:
        session, count = self._session, len(request.tokens)
        spans = {
            old.spans
            for old in self._past
            if old.spans
            and old.spans[0] != request.spans[0]
            and old.namespace == request.namespace
            and old.spans[-1].start + old.spans[-1].length <= count
        }
        prints = {each: session.prints(replace(request, spans=each)) for each in spans}
        return any(session.reuse.longest(prints[each], count - 1, each) > own for each in spans)

    def _cached(self, request: Request) -> Request:
        """Return the prefix of it that is cached, without spans behind that."""
        session = self._session
        prints, count = session.prints(request), len(request.tokens)
        count = session.reuse.longest(prints, count, request.spans)
        return replace(request, tokens=request.tokens[:count], spans=_within(request, count))

    def _twin(self, request: Request) -> bool:
        size = self._size
        return len(request.tokens) > size and any(
            step.live.request.tokens[:size] == request.tokens[:size]
            for step in self._session.steps.values()
        )

    def after(self, operation: ops.Operation, answer: object) -> None:
        """Look at what the operation did."""
        if isinstance(operation, ops.Admit) and isinstance(answer, Scheduled):
            self._admitted(operation, answer)
        if isinstance(answer, Refused):
            self._saw(f"a refusal: {answer.reason}")
        elif isinstance(operation, ops.Reset):
            self._gone += self._leaving
        if isinstance(answer, (Scheduled, Refused)) and len(self._session.steps) > 1:
            self._saw("several steps are in flight")
        if isinstance(operation, ops.Extend) and isinstance(answer, Scheduled):
            size = self._size
            self._saw(
                "an extension crosses a block border", answer.start // size != answer.stop // size
            )
        if isinstance(answer, Completed) and answer.blocks:
            self._saw("a completed step shares an equal block", self._shared(answer))
        if isinstance(operation, ops.Unpin) and isinstance(answer, Released) and answer.blocks:
            self._saw("a pin is dropped", answer.blocks[0])
        if isinstance(operation, ops.ReadBatch):
            rows = [len(self._session.live[name].tables[0]) for name in operation.ids]
            self._saw("a batch with rows of unequal length", len(set(rows)) > 1)
        if isinstance(operation, ops.Lookup):
            self._saw("a lookup finds something", answer)
        self._special.after(operation, answer)

    def rejected(self, live: Live, count: int) -> None:
        """Hear that the last `count` tokens of a request were drafts that did not stay."""
        self._special.rejected(live, count)

    def scheduled(self, live: Live, answer: Scheduled) -> None:
        """Hear of a step before it is judged what went for it."""
        self._special.scheduled(live, answer)

    def _admitted(self, operation: ops.Admit, answer: Scheduled) -> None:
        request = operation.request
        blocks = answer.hit // self._size
        bucket = "0" if not blocks else "1" if blocks == 1 else "2-3" if blocks < 4 else "4+"
        self.hits[bucket] += 1
        self._saw("a hit of no block", blocks == 0)
        self._saw("a hit ends inside a block", answer.hit % self._size)
        self._saw("a hit of one block", blocks == 1)
        self._saw("a hit of several blocks", blocks > 1)
        count = len(request.tokens)
        full = self._session.reuse.longest(self._session.prints(request), count, request.spans)
        self._saw(
            "a hit stops before the last token", blocks and full == count and answer.hit < count
        )
        self._saw(
            "cached blocks are evicted to make room",
            len(self._session.ledger.cached) < self._evicted,
        )
        self._saw("a preempted request comes back", request.resumed)
        self._saw("a preempted request resumes on its own blocks", self._resumes(request, answer))
        self._saw("a request that may not store is admitted", not request.store)
        self._saw("a chunked prefill", operation.compute is not None and answer.stop < count)
        self._past.append(request)

    def _resumes(self, request: Request, answer: Scheduled) -> bool:
        own = set(self._preempted.pop(request.id, ()) if request.resumed else ())
        layout = self._session.layout
        return any(
            block in own
            for group in layout.attention
            for block in answer.blocks[group][: layout.blocks_for(group, answer.hit)]
            if block != NULL_BLOCK
        )

    def _earlier_epoch(self, request: Request, own: int) -> bool:
        return any(
            own < (count := len(old.tokens)) < len(request.tokens)
            and request.tokens[:count] == old.tokens
            and request.namespace == old.namespace
            and _within(request, count) == old.spans
            for old in self._gone
        )

    def _shared(self, answer: Completed) -> bool:
        live = next((x for x in self._session.live.values() if x.groups == answer.blocks), None)
        earlier = [
            record.blocks[0]
            for operation, record in self._session.history
            if isinstance(record, Scheduled)
            and live
            and getattr(operation, "id", getattr(getattr(operation, "request", None), "id", ""))
            == live.request.id
        ]
        return bool(earlier) and any(
            new not in (old, NULL_BLOCK)
            for old, new in zip(earlier[-1], answer.blocks[0])  # noqa: B905 - rejected drafts shorten it
        )


def _within(request: Request, count: int) -> tuple[Span, ...]:
    return tuple(span for span in request.spans if span.start < count)
