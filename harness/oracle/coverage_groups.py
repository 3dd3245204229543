"""Coverage of groups, spans, states, drafts and experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Completed, Request, Scheduled
from kvproof.harness.oracle.cache_model import FILLED_ROW
from kvproof.harness.oracle.longest_hit import Resident, inside
from kvproof.harness.oracle.state import Forecast, OracleState, RequestState, Step

LIMITS = {
    "state": "a hit is limited by a state",
    "window": "a hit is limited by a window",
    "chunk": "a hit is limited by a chunk",
    "draft": "a draft group costs a unit",
    "experts": "a hit is limited by missing expert rows",
    "entry": "a match ends inside an entry",
}
"""Reason that limits a hit (`InvalidReason.why`) -> the situation."""


class GroupCoverage:
    """Counts through `saw`."""

    def __init__(self, state: OracleState, saw: Callable[[str, object], None]) -> None:
        self._state = state
        self._layout = layout = state.layout
        self._saw = saw
        self._mixed = len({layout.groups[group].block_size for group in layout.attention}) > 1
        self._chunks_begin_inside = any(
            group.visibility.begins_inside(group.block_size) for group in layout.groups
        )
        own = [group for group in layout.groups if not group.draft]
        drafts = [replace(group, draft=False) for group in layout.groups if group.draft]
        self._twins = any(group in own for group in drafts)
        windows = {group.size for group in drafts if group.visibility.moves}
        self._unequal_windows = len(windows) > 1
        self._full_draft = any(layout.groups[group].draft for group in layout.full)
        kinds = {rule.kind: True for rule in layout.rules}
        applies = {
            **kinds,
            "draft": layout.drafts,
            "experts": state.config.require_experts,
            "entry": layout.entry > 1,
        }
        self._limits = [why for why in LIMITS if applies.get(why, False)]

    def meets(self, request: Request, forecast: Forecast) -> None:
        """Count the situations of a hit, and the limits that keep it from being longer."""
        state, layout = self._state, self._layout
        resident = forecast.resident or state.hits.resident(forecast.prints)
        if state.profile.span_clamp and request.spans:
            self._spans(request, resident)
        if layout.single and not state.config.require_experts:
            return
        if not (request.read and state.config.prefix_caching):
            return
        own, limit = forecast.cached, len(request.tokens) - 1
        for why in self._limits:
            without = state.hits.search(resident, limit, request.spans, ignoring=why)
            self._saw(LIMITS[why], without > own)
        self._saw("a window hit with holes", own and self._holes(resident, own))
        self._saw("a request meets a checkpoint of other tokens", self._foreign(resident, own))
        full = layout.separate and own and state.free_rows() < 1
        self._saw("a request hits while every state row is taken", full)

    def _holes(self, resident: Resident, hit: int) -> bool:
        return any(
            resident.missing(group, 0, self._layout.first_block(group, hit)) is not None
            for group in self._layout.partly_visible
            if self._layout.rules[group].moves
        )

    def _foreign(self, resident: Resident, own: int) -> bool:
        """The attention groups match further than the state, and a checkpoint stands elsewhere."""
        state, states = self._state, self._layout.states
        if not states or state.hits.matched(resident, len(resident.prints) - 1) <= own:
            return False
        tables = (state.model.cached, state.model.rows)
        return any(entry.group in states for table in tables for entry in table.values())

    def _spans(self, request: Request, resident: Resident) -> None:
        state, unit, spans = self._state, self._layout.unit, request.spans
        self._saw(
            "two spans in a block",
            any((a.start + a.length - 1) // unit == b.start // unit for a, b in pairwise(spans)),
        )
        blocks = [(s.start + s.length - 1) // unit - s.start // unit + 1 for s in spans]
        self._saw("a span over three and more blocks", max(blocks) >= 3)
        self._saw(
            "a span that ends on a block border",
            any((span.start + span.length) % unit == 0 for span in spans),
        )
        if not (request.read and state.config.prefix_caching):
            return
        limit = len(request.tokens) - 1
        length, rounds = state.hits.search(resident, limit, spans, ignoring="span"), 0
        while inside(spans, length):
            start = max(span.start for span in spans if span.start < length)
            length, rounds = start // unit * unit, rounds + 1
        self._saw("a match ends inside a span", rounds)
        self._saw("a clamp that needs two rounds", rounds > 1)

    def rejected(self, live: RequestState, count: int) -> None:
        """Count that the last `count` tokens of a request were drafts that did not stay."""
        unit, end = self._layout.unit, len(live.request.tokens)
        crossed = (end - count) // unit < end // unit
        self._saw("a draft is rejected", count)
        self._saw("a rejected draft across a block border", count and crossed)
        self._saw("a rejected draft leaves states behind", count and self._layout.states)
        entry = self._layout.entry
        completed = entry > 1 and (end - count) // entry < end // entry
        self._saw("a rejected draft completes an entry", count and completed)

    def saving(self, step: Step) -> None:
        """Count that a step leaves the state inside a block unsaved."""
        answer = step.answer
        wanted = self._state.partial and self._layout.states and answer.start < step.live.prompt
        ends_inside = wanted and answer.stop % self._layout.unit
        self._saw("a state inside a block is not saved", ends_inside and not answer.saves)

    def after(self, operation: ops.Operation, answer: object) -> None:
        """Count the situations that an operation made."""
        state = self._state
        if isinstance(answer, Scheduled):
            self._scheduled(operation, answer)
        if state.profile.duplicates == "kept":
            self._saw("equal blocks are kept twice", state.model.pool.copied)
        if isinstance(operation, ops.Complete) and isinstance(answer, Completed):
            unrouted = state.profile.experts and not operation.routed
            self._saw("a step completes without expert rows", unrouted)
        if isinstance(operation, ops.Experts):
            rows = answer if isinstance(answer, tuple) else ()
            self._saw("all expert rows come back", rows and None not in rows)
            self._saw("an expert row is missing", None in rows)
            live = state.live[operation.id]
            self._saw("missing expert rows were filled", FILLED_ROW in live.routed)

    def _inside(self, lengths: set[int]) -> bool:
        return any(length % self._layout.unit for length in lengths)

    def _decodes_after_spans(self, live: RequestState, answer: Scheduled) -> bool:
        unit = self._layout.unit
        first, last = max(answer.start, live.prompt) // unit, answer.stop // unit
        end = max((s.start + s.length for s in live.request.spans), default=-1)
        return answer.start >= live.prompt and first < last and end >= first * unit

    def _scheduled(self, operation: ops.Operation, answer: Scheduled) -> None:
        name = getattr(operation, "id", getattr(getattr(operation, "request", None), "id", ""))
        live = self._state.live.get(name)
        if live is None:
            return
        spans = live.request.spans
        if spans:
            within = any(s.start + s.length <= answer.hit for s in spans)
            self._saw("a span lies inside the hit", answer.hit and within)
            decodes = self._decodes_after_spans(live, answer)
            self._saw("decoding fills a block that spans touch", decodes)
            self._saw("spans in a model with windows", self._layout.partly_visible)
        self._saw("an encoder runs", answer.encode)
        self._saw("a hit in a model with a full draft group", answer.hit and self._full_draft)
        if self._layout.states:
            self._states(live, answer)
        if not self._layout.single:
            several = len(live.steps) > 1 and self._layout.partly_visible
            self._saw("a window moves on while a later step is in flight", several)
            self._saw("blocks of unequal groups lie in one pool", len(self._layout.attention) > 1)
            self._saw("chunks begin inside blocks", self._chunks_begin_inside)
            unequal = answer.hit and self._unequal_windows
            self._saw("a hit beside unequal windows of drafts", unequal)
            self._saw("a hit in blocks of unequal sizes", answer.hit and self._mixed)
            self._saw("a draft model has a group like one of the model's", self._twins)
            entry = self._layout.entry
            self._saw("a hit in a compressed group", answer.hit and entry > 1)
            further = any(group.further_ratios for group in self._layout.groups)
            self._saw("a hit in blocks of several layers", answer.hit and further)
            self._saw("a step ends inside an entry", answer.stop % entry)
            self._saw("a hit in a group with a sidecar", answer.hit and self._layout.sidecars)

    def _states(self, live: RequestState, answer: Scheduled) -> None:
        saved = {tokens for tokens, _, _ in self._state.recurrent.saved(answer, live.drafts)}
        self._saw("a checkpoint is restored", answer.copies or answer.hit)
        self._saw("a checkpoint is saved", saved)
        self._saw("a checkpoint is saved inside a block", self._inside(saved))
        self._saw("a checkpoint is restored inside a block", self._inside({answer.hit}))
        self._saw("a checkpoint at a junction", live.junction in saved)
        self._saw("a checkpoint is saved while decoding", saved and answer.start >= live.prompt)
