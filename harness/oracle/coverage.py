"""Coverage: which situations a history went through; without them a pass proves nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

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
from kvproof.harness.model.fingerprints import Fingerprints, moved
from kvproof.harness.oracle.coverage_groups import GroupCoverage
from kvproof.harness.oracle.state import NULL_BLOCK, Forecast, OracleState, RequestState, Step


class _Past(NamedTuple):
    request: Request
    prints: Fingerprints
    epoch: int


class Coverage:
    """Counts situations: `before` reads the cache model, `after` the answer."""

    def __init__(self, state: OracleState) -> None:
        self._state = state
        self._seen = state.situations.seen
        self._namespaces: set[Namespace] = set()
        self._embedded = False
        """Whether a prompt had embeddings."""
        self._past: list[_Past] = []
        """Requests admitted so far, oldest first."""
        self._leaving: list[Request] = []
        """Cached prefixes of those requests before a reset."""
        self._gone: list[Request] = []
        """Cached prefixes that resets removed."""
        self._evicted = 0
        self._preempted: dict[str, Table] = {}
        """Blocks of requests when they were preempted."""
        self._size = state.layout.unit
        self._groups = GroupCoverage(state, self._saw)
        kept = state.profile.duplicates == "kept"
        self._grouped = not state.layout.single or state.config.require_experts or kept
        """Whether there are situations of groups without spans and expert rows."""

    def _saw(self, situation: str, happened: object = True) -> None:  # noqa: FBT002 - the condition
        if happened:
            self._seen[situation] += 1

    def forget(self) -> None:
        """Drop the requests seen so far."""
        self._past.clear()
        self._gone.clear()
        for live in self._state.live.values():
            live.scheduled = ()

    # --- before an operation ---

    def before(self, operation: ops.Operation, forecast: Forecast | None) -> None:
        """Count the situations that an operation meets; `forecast` is that of an admission."""
        state = self._state
        if forecast is not None and isinstance(operation, ops.Admit) and operation.request.tokens:
            self._meets(operation.request, forecast)
        elif isinstance(operation, (ops.Finish, ops.Cancel, ops.Preempt)):
            self._released(operation)
        elif isinstance(operation, ops.Reset):
            self._saw("a reset while requests hold blocks", state.live)
            self._saw("a reset of a filled cache", state.model.cached)
            self._leaving = [kept for old in self._past if (kept := self._cached(old)).tokens]
        elif isinstance(operation, ops.Extend):
            counts = {len(operation.drafts), *(step.drafts for step in state.steps.values())}
            self._saw("unequal counts of drafts are in flight", len(counts - {0}) > 1)
            partial = state.live[operation.id].computed % self._size
            self._saw("a partial last block is extended", partial)
        self._evicted = len(state.model.cached)

    def _released(self, operation: ops.Finish | ops.Cancel | ops.Preempt) -> None:
        live = self._state.live.get(operation.id)
        self._saw("an unknown request is released", live is None)
        self._saw("a request is released while its step is in flight", live and live.steps)
        if isinstance(operation, ops.Preempt) and live is not None:
            self._preempted[operation.id] = live.blocks

    def _meets(self, request: Request, forecast: Forecast) -> None:
        """Look for equal requests in another namespace, epoch or medium that would have hit."""
        state, seen, own = self._state, self._seen, forecast.cached
        for space in self._namespaces:
            if space != request.namespace and self._in_namespace(request, forecast, space) > own:
                seen["a cached prompt comes back in another namespace"] += 1
                keyed = replace(space, key=request.namespace.key) == request.namespace
                self._saw("a cached prompt comes back under another key", keyed)
        self._namespaces.add(request.namespace)
        if own and not request.read:
            seen["a cached prefix meets a request that may not read"] += 1
        if state.not_stored and state.computed_before(state.not_stored, forecast.prints, own):
            seen["a prompt comes back that was not stored"] += 1
        if request.embedded or self._embedded:
            self._as_embeddings(request, own)
        if request.spans:
            same = own > request.spans[0].start
            self._saw("a cached prompt comes back with the same spans", same)
            self._other_span(request, own)
        if self._gone and self._earlier_epoch(request, own):
            seen["a prompt of an earlier epoch comes back"] += 1
        if state.steps and self._twin(request):
            seen["an equal prompt arrives while its twin is in flight"] += 1
        if self._grouped or request.spans:
            self._groups.meets(request, forecast)

    def _as_embeddings(self, request: Request, own: int) -> None:
        """Look for equal numbers, as ids or rows, and for rows of other numbers."""
        self._embedded = True
        self._saw("a cached prompt comes back with equal embeddings", own and request.embedded)
        state, count = self._state, len(request.tokens)
        for rows in {past.request.embedded for past in self._past} - {request.embedded}:
            prints = state.prints(replace(request, embedded=min(rows, count)))
            more = state.hits.longest(prints, count - 1, ()) > own
            self._saw("a cached prompt comes back as ids instead of embeddings", more)
        for old, prints, epoch in self._past:
            both = min(old.embedded, request.embedded) >= self._size and epoch == state.epoch
            other = both and old.tokens[: self._size] != request.tokens[: self._size]
            cached = other and state.hits.longest(prints, len(prints), ()) > 0
            self._saw("a cached prompt comes back with other embeddings", cached)

    def _in_namespace(self, request: Request, forecast: Forecast, space: Namespace) -> int:
        state = self._state
        here = (request.namespace, state.epoch)
        prints = moved(forecast.prints, here, (space, state.epoch))
        return state.hits.longest(prints, len(request.tokens) - 1, request.spans)

    def _other_span(self, request: Request, own: int) -> None:
        """Look for equal tokens with another first span, and with one of equal bytes."""
        state, count, first = self._state, len(request.tokens), request.spans[0]
        spans = {
            old.spans
            for old, _, _ in self._past
            if old.spans
            and old.spans[0] != first
            and old.namespace == request.namespace
            and old.spans[-1].start + old.spans[-1].length <= count
        }
        cached = [
            each[0]
            for each in spans
            if state.hits.longest(state.prints(replace(request, spans=each)), count - 1, each) > own
        ]
        self._saw("a cached prompt comes back with another span", cached)
        equal = any(replace(other, kind=first.kind) == first for other in cached)
        self._saw("a cached prompt comes back with equal bytes of another kind", equal)

    def _cached(self, past: _Past) -> Request:
        state, (request, prints, epoch) = self._state, past
        space = request.namespace
        prints = moved(prints, (space, epoch), (space, state.epoch))
        count = state.hits.longest(prints, len(prints), request.spans)
        return replace(request, tokens=request.tokens[:count], spans=_within(request, count))

    def _twin(self, request: Request) -> bool:
        size = self._size
        return len(request.tokens) > size and any(
            step.live.request.tokens[:size] == request.tokens[:size]
            for step in self._state.steps.values()
        )

    def _earlier_epoch(self, request: Request, own: int) -> bool:
        return any(
            own < (count := len(old.tokens)) < len(request.tokens)
            and request.tokens[:count] == old.tokens
            and request.namespace == old.namespace
            and _within(request, count) == old.spans
            for old in self._gone
        )

    # --- after an operation ---

    def rejected(self, live: RequestState, count: int) -> None:
        """Count that the last `count` tokens of a request were drafts that did not stay."""
        self._groups.rejected(live, count)

    def scheduled(self, step: Step) -> None:
        """Count the situations of a step before it is checked."""
        self._groups.saving(step)

    def after(self, operation: ops.Operation, answer: object) -> None:
        """Count the situations that an operation made."""
        state, seen = self._state, self._seen
        if not state.live and state.model.cached:
            seen["blocks stay cached when no request is left"] += 1
        if len(state.steps) > 1 and isinstance(answer, (Scheduled, Refused)):
            seen["several steps are in flight"] += 1
        if isinstance(answer, Scheduled):
            if len(state.live) == 1 and state.audited and state.inspected:
                usage = state.inspected.usage
                self._saw("a request fills the pool", usage.held == usage.total)
            if isinstance(operation, ops.Admit):
                self._admitted(operation, answer)
            elif isinstance(operation, ops.Extend):
                self._extended(operation, answer)
        elif isinstance(answer, Refused):
            seen[f"a refusal: {answer.reason}"] += 1
        elif isinstance(operation, ops.Reset):
            self._gone += self._leaving
        elif isinstance(answer, Completed) and answer.blocks and self._shared(answer):
            seen["a completed step shares an equal block"] += 1
        elif isinstance(operation, ops.Unpin) and isinstance(answer, Released) and answer.blocks:
            self._saw("a pin is dropped", answer.blocks[0])
        elif isinstance(operation, ops.ReadBatch):
            rows = {len(state.live[name].tables[0]) for name in operation.ids}
            self._saw("a batch with rows of unequal length", len(rows) > 1)
        elif isinstance(operation, ops.Lookup):
            self._saw("a lookup finds something", answer)
        if self._grouped or isinstance(operation, (ops.Complete, ops.Experts)):
            self._groups.after(operation, answer)

    def _extended(self, operation: ops.Extend, answer: Scheduled) -> None:
        crossed = answer.start // self._size != answer.stop // self._size
        self._saw("an extension crosses a block border", crossed)
        if not self._grouped and self._state.live[operation.id].request.spans:
            self._groups.after(operation, answer)

    def _admitted(self, operation: ops.Admit, answer: Scheduled) -> None:
        state, seen, request = self._state, self._seen, operation.request
        hit, count = answer.hit, len(request.tokens)
        blocks = hit // self._size
        bucket = "0" if not blocks else "1" if blocks == 1 else "2-3" if blocks < 4 else "4+"
        state.situations.hits[bucket] += 1
        self._saw("a hit of no block", blocks == 0)
        self._saw("a hit of one block", blocks == 1)
        self._saw("a hit of several blocks", blocks > 1)
        shared = state.config.context_ranks > 1
        self._saw("a hit in blocks of several ranks", blocks and shared)
        if hit % self._size:
            seen["a hit ends inside a block"] += 1
        live = state.live[request.id]
        whole = blocks and hit < count and (state.partial or count % self._size == 0)
        if whole and state.hits.longest(live.prints[:count], count, request.spans) == count:
            seen["a hit stops before the last token"] += 1
        if len(state.model.cached) < self._evicted:
            seen["cached blocks are evicted to make room"] += 1
        if request.resumed:
            seen["a preempted request comes back"] += 1
            resumes = self._resumes(request, answer)
            self._saw("a preempted request resumes on its own blocks", resumes)
        if not request.store:
            seen["a request that may not store is admitted"] += 1
        if operation.compute is not None and answer.stop < count:
            seen["a chunked prefill"] += 1
        if request.spans and not self._grouped:
            self._groups.after(operation, answer)
        self._past.append(_Past(request, live.prints[:count], state.epoch))

    def _resumes(self, request: Request, answer: Scheduled) -> bool:
        own = set(self._preempted.pop(request.id, ()))
        layout = self._state.layout
        return any(
            block in own
            for group in layout.attention
            for block in answer.blocks[group][: layout.blocks_for(group, answer.hit)]
            if block != NULL_BLOCK
        )

    def _shared(self, answer: Completed) -> bool:
        live = next((x for x in self._state.live.values() if x.groups == answer.blocks), None)
        return live is not None and any(
            new not in (old, NULL_BLOCK)
            for old, new in zip(live.scheduled, answer.blocks[0])  # noqa: B905 - rejected drafts shorten it
        )


def _within(request: Request, count: int) -> tuple[Span, ...]:
    return tuple(span for span in request.spans if span.start < count)
