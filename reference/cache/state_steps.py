"""After which tokens a step saves the state, so that shared prompts hit (S6, S8).

A state can be restored only after exactly the tokens that it has read, so positions must be
chosen where other requests will want to begin: where this prompt leaves the cache (its
*divergence*), at the last unit border of each step that an equal prompt can hit, at the end of the
prompt for those that go on from it, and every `interval` tokens of decoding. A prompt saves at
most two states more than it has steps.

A step may pass such a position: its kernels scan the tokens in chunks and hand out the state
between two of them, so no step ends early for the sake of a checkpoint.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from kvproof.reference.cache.eviction import EvictionPolicy
from kvproof.reference.cache.request_state import RequestState, StateUse, StepEntry
from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.checkpoint import Checkpoint
from kvproof.reference.core.identity import Span
from kvproof.reference.prefix.trie import Node

_START = attrgetter("start")


def saved_after(
    start: int,
    stop: int,
    prompt: int,
    unit: int,
    divergence: int = 0,
    interval: int = 0,
    spans: Sequence[Span] = (),
) -> list[int]:
    """Return after how many tokens, in order, the step [start, stop) saves the state.

    At the divergence; at the last unit border before the last token of the prompt; at the end of
    the prompt if that is a unit border; beyond it at the last multiple of `interval`, which is a
    multiple of the unit, or never if it is 0. Never inside a span (M2). `spans` are in order and
    do not overlap.
    """
    saved = [divergence] if start < divergence <= stop else []
    if start < prompt:
        last = stop if stop < prompt else prompt - 1
        border = last // unit * unit
        if spans:
            border = _outside_spans(start, border, unit, spans)
        if border > start and border != divergence:
            saved.append(border)
        if stop >= prompt and prompt % unit == 0:
            saved.append(prompt)
    if interval and stop > prompt:
        multiple = stop // interval * interval
        if multiple > start and multiple > prompt:
            saved.append(multiple)
    return saved


def _outside(spans: Sequence[Span], position: int) -> bool:
    index = bisect_right(spans, position - 1, key=_START) - 1
    return index < 0 or position >= spans[index].start + spans[index].length


def _outside_spans(start: int, border: int, unit: int, spans: Sequence[Span]) -> int:
    """Return the last unit border in (start, border] outside spans, or a position <= start."""
    while border > start and not _outside(spans, border):
        index = bisect_right(spans, border - 1, key=_START) - 1
        border = spans[index].start // unit * unit
    return border


class StateSteps:
    """Calls `StateCache` in the order of a step (S4)."""

    def __init__(self, config: CacheConfig, eviction: EvictionPolicy) -> None:
        assert eviction.states is not None
        assert eviction.checkpoints is not None
        self._states = eviction.states
        self._checkpoints = eviction.checkpoints
        self._unit = eviction.unit
        self._interval = config.prefix_cache_decode_state_interval

    def before(
        self, request: RequestState, start: int, stop: int
    ) -> tuple[StateUse, list[Checkpoint]]:
        """Give the request its row, which must exist, and one per saved state if there is room."""
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

    def _reserve(self, request: RequestState, due: list[int]) -> list[Checkpoint]:
        wanted = (
            self._states.reserve(request, tokens, replaceable=tokens > request.prompt)
            for tokens in due
        )
        return [save for save in wanted if save is not None]

    def _writes(self, request: RequestState, stop: int, row: Ids) -> tuple[tuple[int, Ids], ...]:
        rows = self._states.acquire_drafts(request, request.drafts)
        assert rows is not None, f"no draft rows for {request.id!r} although there was room"
        first = stop - request.drafts
        return tuple(enumerate([row, *rows], first))

    def due(self, request: RequestState, start: int, stop: int) -> list[int]:
        """Return after how many tokens a step saves the state, if there is room (S6, S8)."""
        if request.drafts or not request.access.write:
            return []
        unit, interval = self._unit, self._interval
        prompt, divergence, spans = request.prompt, request.divergence, request.spans
        return saved_after(start, stop, prompt, unit, divergence, interval, spans)

    def after(self, scheduled: StepEntry, end: Node | None) -> None:
        """Unpin the restored state; publish the saved one on the path of `end`, if there is one."""
        request, saves = scheduled.request, scheduled.saves
        if request in self._states.restores:
            self._states.unpin_restore(request)
        if end is not None and saves:
            self._checkpoints.attach(end, saves)
            return
        for save in saves:
            self._states.discard(save)

    def keep_draft(self, request: RequestState, accepted: int) -> None:
        """Go on from the state after the accepted drafts (X5)."""
        self._states.keep_draft(request, accepted)

    def ids(self, request: RequestState) -> Ids:
        """Return where the state of a request lies, or the checkpoint that a pin keeps."""
        row = self._states.running.get(request)
        if row is None:
            kept = self._states.restores.get(request)
            row = kept.ids if kept else _NO_IDS
        return row


_PLACE = attrgetter("tokens", "ids")
_NO_IDS: Ids = array("i")
