"""Recurrent state of requests, step by step: restore, run, save, publish (S1-S6, S8, X5)."""

from __future__ import annotations

from array import array

from kvproof.reference.block_pool import Ids
from kvproof.reference.checkpoints import Checkpoint
from kvproof.reference.config import CacheConfig
from kvproof.reference.requests import Live, StateUse
from kvproof.reference.residency import Residency
from kvproof.reference.state_saves import saved_after
from kvproof.reference.steps import Scheduled


class StateSteps:
    """Calls `StateCache` in the order of a step (S4)."""

    def __init__(self, config: CacheConfig, residency: Residency) -> None:
        assert residency.states is not None
        assert residency.marks is not None
        self._states = residency.states
        self._marks = residency.marks
        self._unit = residency.unit
        self._interval = config.prefix_cache_decode_state_interval

    def hold(self, request: Live, checkpoint: Checkpoint | None) -> None:
        """Begin with a request or pin: keep the checkpoint that it hits, if any (B2, B5)."""
        if checkpoint is not None:
            self._states.pin_restore(checkpoint, request)

    def before(self, request: Live, start: int, stop: int) -> tuple[StateUse, list[Checkpoint]]:
        """Give the request its row, and a row for each state that it saves if there is room.

        The caller knows that there is a row (`Needs`).
        """
        states, restore = self._states, None
        row = states.running(request)
        if row is None:
            row = states.acquire(request)
            assert row is not None, f"no row for {request.id!r} although it was admitted"
            source = states.restores(request)
            restore = (source.ids, row) if source else None
        read = row if start else _NO_IDS
        if request.drafts:
            return StateUse(read, self._writes(request, stop, row), restore), []
        saves, saved = [], []
        for tokens in self.due(request, start, stop):
            save = states.reserve(request, tokens, replaceable=tokens > request.prompt)
            if save is not None:
                saves.append(save)
                saved.append((tokens, save.ids))
        return StateUse(read, ((stop, row),), restore, tuple(saved)), saves

    def _writes(self, request: Live, stop: int, row: Ids) -> tuple[tuple[int, Ids], ...]:
        rows = self._states.acquire_drafts(request, request.drafts)
        assert rows is not None, f"no draft rows for {request.id!r} although there was room"
        first = stop - request.drafts
        return tuple(enumerate([row, *rows], first))

    def due(self, request: Live, start: int, stop: int) -> list[int]:
        """Return after how many tokens a step saves the state, if there is room (S6, S8)."""
        if request.drafts or not request.access.write:
            return []
        return saved_after(
            start,
            stop,
            prompt=request.prompt,
            unit=self._unit,
            junction=request.junction,
            interval=self._interval,
            spans=request.spans,
        )

    def after(self, scheduled: Scheduled, *, current: bool) -> None:
        """Publish what the step has saved, and drop the pin of what it restored."""
        request, _, _, saves = scheduled
        if self._states.restores(request):
            self._states.unpin_restore(request)
        for save in saves:
            if current:
                self._marks.hang(request.node, save)
            else:
                self._states.discard(save)

    def keep_draft(self, request: Live, accepted: int) -> None:
        """Go on from the state after the accepted drafts (X5)."""
        self._states.keep_draft(request, accepted)

    def release(self, request: Live) -> None:
        """Give back every row of a request, once no step of it is in flight (S2)."""
        self._states.release(request)

    def ids(self, request: Live) -> Ids:
        """Return where the state of a request lies, or the checkpoint that a pin keeps."""
        row = self._states.running(request)
        if row is None:
            kept = self._states.restores(request)
            row = kept.ids if kept else _NO_IDS
        return row


_NO_IDS: Ids = array("i")
