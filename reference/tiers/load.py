"""Loading of objects: room, blocks, content, index, in this order (B4, B5, C8).

Room is checked before anything is fetched; nothing changes if there is none. The hit of the request
becomes the most recent, so it is not evicted to make room for the rest.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from kvproof.reference.cache.eviction import EvictionPolicy
from kvproof.reference.cache.request_state import RequestState
from kvproof.reference.core.block_pool import NULL_BLOCK, Ids
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.checkpoint import Checkpoint
from kvproof.reference.core.media_spans import chunk_stop
from kvproof.reference.model.interface import Mover, Stored
from kvproof.reference.prefix.trie import Node
from kvproof.reference.tiers import object_key
from kvproof.reference.tiers.plan import Plan, visible
from kvproof.reference.tiers.runs import Seen, add_empty_runs


class _Loaded(NamedTuple):
    """Loaded blocks that are not indexed yet."""

    ids: dict[tuple[str, int], Ids]
    """(part, unit) -> blocks."""
    state: Checkpoint | None


class Loader:
    """Brings plans to the index of one cache."""

    def __init__(self, config: CacheConfig, eviction: EvictionPolicy) -> None:
        self._eviction, self._trie, self._windows = eviction, eviction.trie, eviction.windows
        self._unit, self._width = eviction.unit, config.layout.full.width
        self._separate = eviction.states is not None and not eviction.state_blocks
        self._widths = {object_key.FULL: self._width, object_key.EXPERTS: 0}
        self._widths |= {object_key.local(c): own.width for c, own in enumerate(self._windows)}
        self._widths[object_key.STATE] = eviction.state_blocks

    # --- room: nothing changes ---

    def fits(self, request: RequestState, plan: Plan, compute: int | None) -> bool:
        """Return whether the plan and then the first step of its request find room (B4)."""
        eviction = self._eviction
        if self._separate and not self._rows_fit(plan):
            return False
        available = eviction.pool.num_free + eviction.num_evictable - self._kept(plan)
        loaded = sum(self._widths[need.part] for need in plan.needs)
        return loaded + self._first_step(request, plan, compute) <= available

    def _rows_fit(self, plan: Plan) -> bool:
        """Return whether there is a running row in addition to that of the checkpoint (S5)."""
        states, checkpoint = self._eviction.states, self._checkpoint(plan, plan.match.node)
        assert states is not None
        pinned = checkpoint is not None and checkpoint.restores > 0
        rows = states.home.num_free + states.num_ready
        return rows >= (1 if pinned else 2) and states.num_startable >= 1

    def _first_step(self, request: RequestState, plan: Plan, compute: int | None) -> int:
        start, count = plan.length * self._unit, request.prompt
        stop = count if compute is None else min(count, start + compute)
        if request.spans and stop > start:
            stop = chunk_stop(start, stop, request.spans)
        units = -(-stop // self._unit) - plan.length
        return units * self._eviction.row_width + self._eviction.state_blocks

    def _kept(self, plan: Plan) -> int:
        """Return the idle blocks that the hit takes, as far as they are in the index (B5)."""
        here = plan.match.shortened(min(plan.match.units, plan.reach))
        kept = self._trie.evictable_blocks(here)
        kept += sum(each.evictable_blocks(here.node) for each in self._seen(plan))
        checkpoint = self._checkpoint(plan, here.node)
        ready = checkpoint is not None and not checkpoint.restores
        return kept + (self._eviction.state_blocks if ready else 0)

    def _seen(self, plan: Plan) -> list[Seen]:
        return [
            Seen(index, own, *visible(own.rule, plan.length, plan.reach))
            for index, own in enumerate(self._windows)
        ]

    def _checkpoint(self, plan: Plan, node: Node | None) -> Checkpoint | None:
        marks = self._eviction.checkpoints
        if marks is None or plan.state or node is None:
            return None
        return marks.last(node, plan.length * self._unit)

    # --- loading ---

    def load(
        self, request: RequestState, plan: Plan, mover: Mover, views: Mapping[bytes, memoryview]
    ) -> None:
        """Give every need of a plan that fits its place, its content and its index entry."""
        here, reach = plan.match.units, plan.reach
        held = [self._hold(request, min(here, end)) for end in (reach, plan.length, reach)]
        self._make_recent(plan, held[-1])
        loaded = self._take(plan)
        self._move(plan, mover, views, loaded)
        self._insert(request, here, plan.length, loaded)
        self._insert(request, max(here, plan.length), reach, loaded)
        held.append(self._hold(request, reach))
        self._attach(plan, held[-1], loaded, views)
        for node in held:
            self._trie.unlock(node)

    def _hold(self, request: RequestState, units: int) -> Node:
        match = self._trie.match(request.namespace, bytes(request.tokens), request.segments, units)
        return self._trie.lock(match, request.namespace)

    def _make_recent(self, plan: Plan, node: Node) -> None:
        self._trie.clock += 1
        for each in self._seen(plan):
            each.make_recent(node)
        checkpoint = self._checkpoint(plan, node)
        if checkpoint is not None and self._eviction.states is not None:
            self._eviction.states.touch(checkpoint)

    def _take(self, plan: Plan) -> _Loaded:
        widths = [
            0 if need.part == object_key.STATE else self._widths[need.part] for need in plan.needs
        ]
        ids, given = self._eviction.allocate(sum(widths)), {}
        for need, width in zip(plan.needs, widths, strict=True):
            given[need.part, need.unit], ids = ids[:width], ids[width:]
        if not plan.state:
            return _Loaded(given, None)
        assert self._eviction.states is not None
        state = self._eviction.states.reserve(None, plan.length * self._unit)
        assert state is not None, "there was room for a state when it was asked"
        given[object_key.STATE, plan.length - 1] = state.ids
        return _Loaded(given, state)

    def _move(
        self, plan: Plan, mover: Mover, views: Mapping[bytes, memoryview], loaded: _Loaded
    ) -> None:
        moved = [need for need in plan.needs if need.part != object_key.EXPERTS]
        places = [Stored(need.part, loaded.ids[need.part, need.unit]) for need in moved]
        mover.load(places, [views[need.key] for need in moved])

    def _insert(self, request: RequestState, first: int, last: int, loaded: _Loaded) -> None:
        """Add units [first, last) in nodes of their own: runs have holes at their front only."""
        if first >= last:
            return
        table = array("i", [NULL_BLOCK]) * (first * self._width)
        for unit in range(first, last) if self._width else ():
            table += loaded.ids[object_key.FULL, unit]
        twice = [self._hold(request, first), self._hold(request, first)]
        pieces = self._trie.insert(
            twice.pop(), request.tokens, request.segments, table, first, last
        )
        for piece in pieces:
            add_empty_runs(self._windows, piece.node)
        self._trie.unlock(pieces[-1].node)
        self._trie.unlock(twice.pop())

    def _attach(
        self, plan: Plan, node: Node, loaded: _Loaded, views: Mapping[bytes, memoryview]
    ) -> None:
        """Attach the loaded state, rows and window blocks to a path."""
        for each in self._seen(plan):
            each.fill(node, loaded.ids)
        if loaded.state is not None and self._eviction.checkpoints is not None:
            self._eviction.checkpoints.attach(node, [loaded.state])
        for need in plan.needs:
            if need.part == object_key.EXPERTS:
                self._fill_rows(node, need.unit, views[need.key])

    def _fill_rows(self, node: Node, unit: int, view: memoryview) -> None:
        assert self._eviction.experts is not None
        store = self._eviction.experts.store
        form = store.form
        rows = np.frombuffer(view, form.dtype).reshape(form.unit, form.layers, form.ranks)
        while node.start > unit:
            assert node.parent is not None
            node = node.parent
        store.fill(node, unit - node.start, rows)
