"""What a request holds: its tables against what is resident, from hit to release (B2, T2, X4)."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from functools import partial

import numpy.typing as npt
from msgspec.structs import replace

from kvproof.reference.cache.eviction import Residency
from kvproof.reference.cache.partial_hits import PartialSteps
from kvproof.reference.cache.request_state import Admission, Live
from kvproof.reference.cache.state_steps import StateSteps
from kvproof.reference.cache.step_fence import Scheduled, Steps
from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.identity import TOKEN_BYTES
from kvproof.reference.prefix.node import Match, Piece


class Holdings:
    """Moves blocks between requests, the index and the pool."""

    def __init__(self, config: CacheConfig, residency: Residency, steps: Steps) -> None:
        self._residency = residency
        self._pool = residency.pool
        self._trie = residency.trie
        self._local = residency.local
        self._steps = steps
        self._width = config.layout.full.width
        self._row_width = residency.row_width
        self._rows = residency.states
        self.states = StateSteps(config, residency) if residency.states else None
        self.partial = PartialSteps(config, residency, steps) if residency.tails else None
        self._experts = residency.experts
        self.epoch = 0
        self.leaving: list[Live] = []
        """Released requests whose last step is in flight."""
        self.retired: list[Ids] = []
        """Blocks replaced by equal ones while a step in flight may read them."""

    def hold(self, request: Live, hit: Match) -> None:
        """Hold what is hit, in every group, before anything new is taken (B5)."""
        request.epoch = self.epoch
        request.node = node = self._trie.hold(hit, request.namespace)
        request.table = node.table()
        request.units = request.indexed = hit.units
        if hit.tail and self.partial:
            self.partial.hold(hit.tail.tail)
        if self._local:
            request.local = []
            for local in self._local:
                request.local.append(local.hold(node))
        if self._rows and hit.checkpoint:
            self._rows.pin_restore(hit.checkpoint, request)
        if self._experts:
            self._experts.start(request)

    def copying(self, request: Live, hit: Match, admission: Admission) -> Admission:
        """Add what has to be copied before the first step writes behind a hit (T6)."""
        assert self.partial
        assert hit.tail
        return replace(admission, copies=self.partial.copies(request, hit.tail))

    def grow(self, request: Live, units: int) -> None:
        """Take room for `units` units in every table; the caller knows that it is there."""
        missing = units - request.units
        request.units = units
        count, pool = missing * self._row_width, self._pool
        ids = pool.take(count) if count <= pool.num_free else self._residency.take(count)
        if not request.local:
            request.table += ids
            return
        used = missing * self._width
        request.table += ids[:used]
        for own in request.local:
            first, used = used, used + missing * own.blocks.width
            own.ids += ids[first:used]

    def check_results(
        self,
        running: list[Scheduled],
        accepted: Mapping[str, int],
        experts: Mapping[str, npt.ArrayLike],
    ) -> None:
        """Refuse what no step can have come to (B4). Raises ValueError."""
        for scheduled in running:
            name, drafts = scheduled.request.id, scheduled.drafts
            if not 0 <= accepted.get(name, 0) <= drafts:
                raise ValueError(f"{accepted[name]} drafts of {name!r} accepted, it has {drafts}")
            if self._experts and name in experts and not scheduled.request.released:
                self._experts.check(scheduled, experts[name])

    def settle_drafts(self, scheduled: Scheduled, accepted: int | None) -> int:
        """Roll length and state back to the accepted drafts, all if None (X5)."""
        request, drafts = scheduled.request, scheduled.drafts
        kept = drafts if accepted is None else accepted
        stop = scheduled.stop - drafts + kept
        if self.states and not request.released:
            self.states.keep_draft(request, kept)
        request.tokens = request.tokens[: stop * TOKEN_BYTES]
        request.computed, request.drafts = stop, 0
        return stop

    def index(self, request: Live, last: int) -> None:
        """Hang the units up to `last` that a step has computed on the index (T2)."""
        if last <= request.indexed:
            return
        table, first = request.table, request.indexed
        pieces = self._trie.insert(
            request.node, request.tokens, request.segments, table, first, last
        )
        request.node, request.indexed = pieces[-1].node, last
        for piece in pieces:
            if piece.existed and self._width:
                self._replace(request, piece)
        if self._experts:
            self._experts.index(request, pieces)
        for own in request.local:
            duplicates = own.blocks.index(own, pieces)
            if duplicates:
                self._retire(request, duplicates)

    def _replace(self, request: Live, piece: Piece) -> None:
        """Use blocks that exist already instead of equal ones just computed (T2)."""
        span = slice(piece.first * self._width, piece.last * self._width)
        own = request.table[span]
        first = (piece.first - piece.node.start) * self._width  # the node may have grown since
        request.table[span] = piece.node.blocks[first : first + len(own)]
        self._retire(request, own)

    def _retire(self, request: Live, ids: Ids) -> None:
        """Give blocks back once no step of the request can read them (B6)."""
        if self._steps.runs(request.last_step):
            self.retired.append(ids)
            self._steps.after(request.last_step, partial(self._give_retired, ids))
        else:
            self._pool.give(ids)

    def _give_retired(self, ids: Ids) -> None:
        self.retired.remove(ids)
        self._pool.give(ids)

    def leave_local(self, request: Live, tokens: int) -> None:
        """Give back what no step of the request from position `tokens` on sees (X4)."""
        for own in request.local:
            blocks, before = own.blocks, own.first
            first = blocks.rule.first_unit(tokens)
            if first > before:
                freed = blocks.leave(own, request.node, request.indexed, first)
                own.hide(before)
                if freed:
                    self._pool.give(freed)
        if request.epoch != self.epoch:
            self._forget_local(request)

    def _forget_local(self, request: Live) -> None:
        """Give back what nobody sees any more of a path that a reset has orphaned (H6)."""
        for local in self._local:
            self._pool.give(local.forget(request.node))

    def release(self, request: Live) -> None:
        """Let go of everything, once the last step of the request is done (B2, B6)."""
        request.released = True
        if self._steps.runs(request.last_step):
            self.leaving.append(request)
            self._steps.after(request.last_step, partial(self._leave, request))
        elif self.partial:
            self._drop(request, self.partial.leave(request, self._scratch(request), self.epoch))
        else:
            self._drop(request, self._scratch(request))

    def _leave(self, request: Live) -> None:
        self.leaving.remove(request)
        self._drop(request, self._scratch(request))

    def _scratch(self, request: Live) -> Ids:
        """Return its own blocks of full attention, which are not in the index."""
        if request.units == request.indexed:
            return _NO_IDS
        return request.table[request.indexed * self._width :]

    def _drop(self, request: Live, scratch: Ids) -> None:
        """Let go of a path, ends of chains first (B3)."""
        if request.epoch == self.epoch:
            self._trie.release(request.node)
        else:
            self._pool.give(self._trie.abandon(request.node))
        if scratch:
            self._pool.give(scratch)
        for own in request.local:
            blocks = own.blocks
            unseen = blocks.leave(own, request.node, request.indexed, len(own.ids) // blocks.width)
            if unseen:
                self._pool.give(unseen)
        if request.epoch != self.epoch:
            self._forget_local(request)
        if self._rows:
            self._rows.release(request)
            if not self._row_width:
                self._residency.prune(request.node)
        if self._experts:
            self._experts.release(request)


_NO_IDS: Ids = array("i")
