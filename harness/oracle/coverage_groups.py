"""Situations of groups, spans, states, drafts and experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Completed, Request, Scheduled
from kvproof.harness.oracle.longest_hit import inside
from kvproof.harness.oracle.request_state import FILLED_ROW, Live

if TYPE_CHECKING:
    from kvproof.harness.oracle.session import Session

LIMITS = {
    "state": "a hit is limited by a state",
    "window": "a hit is limited by a window",
    "chunk": "a hit is limited by a chunk",
    "draft": "a draft group costs a unit",
    "experts": "a hit is limited by missing expert rows",
}
"""What a hit lacked (`Lack.why`) -> the situation."""


class SpecialSituations:
    """Counts through `saw`; targets without any of this cost nothing here."""

    def __init__(self, session: Session, saw: Callable[[str, object], None]) -> None:
        self._session = session
        self._layout = session.layout
        self._saw = saw
        self._kinds = {group.kind for group in self._layout.groups}
        self._window_entries = 0
        self._chunks_begin_inside = any(
            group.kind == "chunk" and group.size % group.block_size for group in self._layout.groups
        )
        own = [group for group in self._layout.groups if not group.draft]
        drafts = [replace(group, draft=False) for group in self._layout.groups if group.draft]
        self._twins = any(group in own for group in drafts)

    def meets(self, request: Request, own: int) -> None:
        """Look at what a request is about to hit, and at what keeps it from hitting more."""
        session = self._session
        if session.profile.span_clamp and request.spans:
            self._spans(request)
        if self._layout.single and not session.config.require_experts:
            return
        if not (request.read and session.config.prefix_caching):
            return
        for why, words in LIMITS.items():
            limits = (
                why in self._kinds
                or (why == "draft" and self._drafts())
                or (why == "experts" and session.config.require_experts)
            )
            self._saw(words, limits and session.expected_hit(request, but=why) > own)
        self._saw("a window hit with holes", own and self._holes(request, own))
        self._saw("a request meets a checkpoint of other tokens", self._foreign(request, own))
        full = self._layout.separate and session.states.free_rows() < 1
        self._saw("a request hits while every state row is taken", own and full)

    def _drafts(self) -> bool:
        return any(group.draft for group in self._layout.groups)

    def _full_draft(self) -> bool:
        return any(group.draft and group.kind == "full" for group in self._layout.groups)

    def _holes(self, request: Request, hit: int) -> bool:
        prints = self._session.prints(request)
        for group, layers in enumerate(self._layout.groups):
            if layers.kind == "window":
                behind = range(self._layout.first_block(group, hit))
                if any(not self._session.ledger.has_block(prints, i, group) for i in behind):
                    return True
        return False

    def _foreign(self, request: Request, own: int) -> bool:
        """The attention groups match further than the state, and a checkpoint stands elsewhere."""
        session = self._session
        if not self._layout.states:
            return False
        matched = session.reuse.matched(session.prints(request), len(request.tokens) - 1)
        tables = (session.ledger.cached, session.ledger.rows)
        return matched > own and any(
            entry.group in self._layout.states for table in tables for entry in table.values()
        )

    def _spans(self, request: Request) -> None:
        session, unit, spans = self._session, self._layout.unit, request.spans
        pairs = pairwise(spans)
        self._saw(
            "two spans in a block",
            any((a.start + a.length - 1) // unit == b.start // unit for a, b in pairs),
        )
        blocks = [(s.start + s.length - 1) // unit - s.start // unit + 1 for s in spans]
        self._saw("a span over three and more blocks", max(blocks) >= 3)
        self._saw(
            "a span that ends on a block border",
            any((span.start + span.length) % unit == 0 for span in spans),
        )
        length, rounds = session.expected_hit(request, but="span"), 0
        while inside(spans, length):
            start = max(span.start for span in spans if span.start < length)
            length, rounds = start // unit * unit, rounds + 1
        self._saw("a match ends inside a span", rounds)
        self._saw("a clamp that needs two rounds", rounds > 1)

    def rejected(self, live: Live, count: int) -> None:
        """Hear that the last `count` tokens of a request were drafts that did not stay."""
        unit, end = self._layout.unit, len(live.request.tokens)
        crossed = (end - count) // unit < end // unit
        self._saw("a draft is rejected", count)
        self._saw("a rejected draft across a block border", count and crossed)
        self._saw("a rejected draft leaves states behind", count and self._layout.states)

    def scheduled(self, live: Live, answer: Scheduled) -> None:
        """Hear of a step before it is judged what went for it."""
        wanted = self._session.tails and self._layout.states and answer.start < live.prompt
        ends_inside = wanted and answer.stop % self._layout.unit
        self._saw("a state inside a block is not saved", ends_inside and not answer.saves)

    def after(self, operation: ops.Operation, answer: object) -> None:
        """Look at what the operation did."""
        if isinstance(answer, Scheduled):
            self._scheduled(operation, answer)
        if self._session.profile.duplicates == "kept":
            self._saw("equal blocks are kept twice", self._session.ledger.duplicates())
        if isinstance(operation, ops.Complete) and isinstance(answer, Completed):
            self._saw("a step completes without expert rows", self._unrouted(operation))
        if isinstance(operation, ops.Experts):
            rows = answer if isinstance(answer, tuple) else ()
            self._saw("all expert rows come back", rows and None not in rows)
            self._saw("an expert row is missing", None in rows)
            live = self._session.live[operation.id]
            self._saw("missing expert rows were filled", FILLED_ROW in live.routed)

    def _inside(self, lengths: set[int]) -> bool:
        return any(length % self._layout.unit for length in lengths)

    def _decodes_beside(self, live: Live, answer: Scheduled) -> bool:
        unit = self._layout.unit
        first, last = max(answer.start, live.prompt) // unit, answer.stop // unit
        end = max((s.start + s.length for s in live.request.spans), default=-1)
        return answer.start >= live.prompt and first < last and end >= first * unit

    def _unrouted(self, operation: ops.Complete) -> bool:
        return self._session.profile.experts and not operation.routed

    def _scheduled(self, operation: ops.Operation, answer: Scheduled) -> None:
        session = self._session
        name = getattr(operation, "id", getattr(getattr(operation, "request", None), "id", ""))
        live = session.live.get(name)
        if live is None:
            return
        spans = live.request.spans
        self._saw(
            "a span lies inside the hit",
            answer.hit and any(s.start + s.length <= answer.hit for s in spans),
        )
        self._saw("an encoder runs", answer.encode)
        self._saw("decoding fills a block that spans touch", self._decodes_beside(live, answer))
        self._saw("spans in a model with windows", spans and self._kinds & {"window", "chunk"})
        self._saw("a hit in a model with a full draft group", answer.hit and self._full_draft())
        if self._layout.states:
            saved = {tokens for tokens, _, _ in session.states.saved(live, answer)}
            self._saw("a checkpoint is restored", answer.copies or answer.hit)
            self._saw("a checkpoint is saved", saved)
            self._saw("a checkpoint is saved inside a block", self._inside(saved))
            self._saw("a checkpoint is restored inside a block", self._inside({answer.hit}))
            self._saw("a checkpoint at a junction", live.junction in saved)
            self._saw("a checkpoint is saved while decoding", saved and answer.start >= live.prompt)
        if not self._layout.single:
            self._saw(
                "a window moves on while a later step is in flight",
                len(live.steps) > 1 and self._kinds & {"window", "chunk"},
            )
            self._saw("blocks of unequal groups lie in one pool", len(self._layout.attention) > 1)
            self._saw("chunks begin inside blocks", self._chunks_begin_inside)
            self._saw("a draft model has a group like one of the model's", self._twins)
