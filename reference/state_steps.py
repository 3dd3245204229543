"""Recurrent state of requests, step by step: restore, run, save, publish (S1-S6, S8, X5)."""

from __future__ import annotations

from array import array

from kvproof.reference.block_pool import Ids
from kvproof.reference.checkpoints import Checkpoint
from kvproof.reference.config import CacheConfig
from kvproof.reference.requests import Live, StateUse
from kvproof.reference.residency import Residency
from kvproof.reference.state_saves import save_kind
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
        self._admitted = 0

    def hold(self, request: Live, checkpoint: Checkpoint | None) -> None:
        """Begin with a request or pin: keep the checkpoint that it hits, if any (B2, B5)."""
        self._admitted += 1
        request.key = f"{request.id}#{self._admitted}"
        if checkpoint is not None:
            self._states.pin_restore(checkpoint, request.key)

    def before(self, request: Live, start: int, stop: int) -> tuple[StateUse, Checkpoint | None]:
        """Give the request its row, and a row for what it will save if there is room.

        The caller knows that there is a row (`Needs`).
        """
        source, row = None, self._states.running(request.key)
        if row is None:
            row = self._states.acquire(request.key)
            source = self._states.restores(request.key)
        assert row is not None, f"no row for {request.id!r} although it was admitted"
        save = self._reserve(request, stop)
        use = StateUse(
            row if start else _NO_IDS,
            self._writes(request, stop, row) if request.drafts else ((stop, row),),
            (source.ids, row) if source else None,
            (row, save.ids) if save else None,
        )
        return use, save

    def _writes(self, request: Live, stop: int, row: Ids) -> tuple[tuple[int, Ids], ...]:
        rows = self._states.acquire_drafts(request.key, request.drafts)
        assert rows is not None, f"no draft rows for {request.id!r} although there was room"
        first = stop - request.drafts
        return tuple(enumerate([row, *rows], first))

    def _reserve(self, request: Live, stop: int) -> Checkpoint | None:
        if request.drafts or not request.access.write:
            return None
        kind = save_kind(
            stop,
            prompt=request.prompt,
            unit=self._unit,
            interval=self._interval,
            spans=request.spans,
        )
        if kind == "no":
            return None
        return self._states.reserve(request.key, stop, replaceable=kind == "decode")

    def after(self, scheduled: Scheduled, *, current: bool) -> None:
        """Publish what the step has saved, and drop the pin of what it restored."""
        request, _, _, save = scheduled
        if request.released:
            return
        if self._states.restores(request.key):
            self._states.unpin_restore(request.key)
        if save is None:
            return
        if current:
            self._marks.hang(request.node, save)
        else:
            self._states.discard(save)

    def keep_draft(self, request: Live, accepted: int) -> None:
        """Go on from the state after the accepted drafts (X5)."""
        self._states.keep_draft(request.key, accepted)

    def release(self, request: Live) -> None:
        """Give back every row of a request, once no step of it is in flight (S2)."""
        self._states.release(request.key)

    def ids(self, request: Live) -> Ids:
        """Return where the state of a request lies, or the checkpoint that a pin keeps."""
        row = self._states.running(request.key)
        if row is None:
            kept = self._states.restores(request.key)
            row = kept.ids if kept else _NO_IDS
        return row


_NO_IDS: Ids = array("i")
