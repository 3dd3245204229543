"""Recurrent state of requests, step by step: restore, run, save, publish (S1-S6, S8, X5)."""

from __future__ import annotations

from array import array
from operator import attrgetter

from kvproof.reference.cache.eviction import Residency
from kvproof.reference.cache.request_state import Live, StateUse
from kvproof.reference.cache.step_fence import Scheduled
from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.checkpoint import Checkpoint
from kvproof.reference.prefix.node import Node
from kvproof.reference.states.checkpoint_policy import saved_after


class StateSteps:
    """Calls `StateCache` in the order of a step (S4)."""

    def __init__(self, config: CacheConfig, residency: Residency) -> None:
        assert residency.states is not None
        assert residency.marks is not None
        self._states = residency.states
        self._marks = residency.marks
        self._unit = residency.unit
        self._interval = config.prefix_cache_decode_state_interval

    def before(self, request: Live, start: int, stop: int) -> tuple[StateUse, list[Checkpoint]]:
        """Give the request its row, and a row for each state that it saves if there is room.

        The caller knows that there is a row (`Needs`).
        """
        states, restore, saves = self._states, None, None
        due = self.due(request, start, stop)
        row = states.running.get(request)
        if row is None:
            saves = states.begin(request, due)
            row = states.acquire(request) if saves is None else states.running[request]
            assert row is not None, f"no row for {request.id!r} although it was admitted"
            source = states.restores.get(request)
            restore = (source.ids, row) if source else None
        read = row if start else _NO_IDS
        if request.drafts:
            return StateUse(read, self._writes(request, stop, row), restore), []
        if saves is None:
            saves = self._reserve(request, due)
        return StateUse(read, ((stop, row),), restore, tuple(map(_PLACE, saves))), saves

    def _reserve(self, request: Live, due: list[int]) -> list[Checkpoint]:
        """Reserve a row for each state that finds room."""
        wanted = (
            self._states.reserve(request, tokens, replaceable=tokens > request.prompt)
            for tokens in due
        )
        return [save for save in wanted if save is not None]

    def _writes(self, request: Live, stop: int, row: Ids) -> tuple[tuple[int, Ids], ...]:
        rows = self._states.acquire_drafts(request, request.drafts)
        assert rows is not None, f"no draft rows for {request.id!r} although there was room"
        first = stop - request.drafts
        return tuple(enumerate([row, *rows], first))

    def due(self, request: Live, start: int, stop: int) -> list[int]:
        """Return after how many tokens a step saves the state, if there is room (S6, S8)."""
        if request.drafts or not request.access.write:
            return []
        unit, interval = self._unit, self._interval
        prompt, junction, spans = request.prompt, request.junction, request.spans
        return saved_after(start, stop, prompt, unit, junction, interval, spans)

    def after(self, scheduled: Scheduled, end: Node | None) -> None:
        """Drop the pin of what the step restored, and publish what it saved on the path of `end`.

        None: nobody may have it.
        """
        request, saves = scheduled.request, scheduled.saves
        if request in self._states.restores:
            self._states.unpin_restore(request)
        if end is not None and saves:
            self._marks.hang(end, saves)
            return
        for save in saves:
            self._states.discard(save)

    def keep_draft(self, request: Live, accepted: int) -> None:
        """Go on from the state after the accepted drafts (X5)."""
        self._states.keep_draft(request, accepted)

    def ids(self, request: Live) -> Ids:
        """Return where the state of a request lies, or the checkpoint that a pin keeps."""
        row = self._states.running.get(request)
        if row is None:
            kept = self._states.restores.get(request)
            row = kept.ids if kept else _NO_IDS
        return row


_PLACE = attrgetter("tokens", "ids")
_NO_IDS: Ids = array("i")
