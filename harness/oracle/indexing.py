"""Bookkeeping of the cache model: which blocks and checkpoints a step makes reusable, and when."""

from __future__ import annotations

from dataclasses import replace

from kvproof.harness.contract.target import Table
from kvproof.harness.oracle.longest_hit import inside
from kvproof.harness.oracle.state import (
    NULL_BLOCK,
    Fenced,
    Forecast,
    OracleState,
    RequestState,
    Step,
)


class Indexing:
    """Changes the cache model of one history."""

    def __init__(self, state: OracleState) -> None:
        self._state = state
        self._layout = state.layout
        self._all = state.profile.window_blocks == "all"

    def junction(self, live: RequestState, hit: int, forecast: Forecast) -> int:
        """Return where the attention groups matched further than the state; 0: nowhere (S8)."""
        state, request = self._state, live.request
        if not (request.read and request.store and state.config.prefix_caching):
            return 0
        resident = forecast.resident or state.hits.resident(live.prints)
        length = state.hits.matched(resident, len(request.tokens) - 1)
        if self._layout.drafts:
            length -= self._layout.unit
        while length > hit and state.profile.span_clamp and inside(request.spans, length):
            length -= self._layout.unit
        return length if length > hit else 0

    def touch(self, live: RequestState) -> None:
        """A hit makes the blocks of windows before it as recent as itself (B3)."""
        state = self._state
        for group in self._layout.partly_visible:
            count = live.hit // self._layout.groups[group].block_size
            state.model.pool.touch(state.model.keys(live.prints, group)[:count], state.recency.now)

    # --- the end of a step ---

    def unfence(self, number: int) -> None:
        """Blocks that waited for this step only are free."""
        state = self._state
        for fenced in state.fenced:
            fenced.steps.discard(number)
        state.fenced[:] = [fenced for fenced in state.fenced if fenced.steps]

    def fence_states(self, step: Step) -> None:
        """A request that left may keep the states of this step until its last step is done."""
        live, states = step.live, tuple(step.held | step.sources)
        fenced = Fenced(live.request, states, set(live.steps), confirmed=False)
        self._state.fenced.append(fenced)

    def reject(self, live: RequestState, rejected: int) -> None:
        """Remove the last `rejected` tokens of a request: drafts that were not accepted (X5)."""
        live.drafts = 0
        if not rejected:
            return
        unit, count = self._layout.unit, len(live.request.tokens) - rejected
        ends = live.prints[unit - 1 :: unit][count // unit :]
        self._state.rejected.update(ends.tolist())
        live.request = replace(live.request, tokens=live.request.tokens[:count])
        live.prints, live.computed = live.prints[:count], count
        live.routed = live.routed[:count]

    def retire(self, live: RequestState, groups: tuple[Table, ...]) -> None:
        """Blocks replaced by equal ones stay allocated while a step may read them (B6).

        Blocks outside every window are released at once.
        """
        if not live.steps:
            return
        changed = [
            (old, new)
            for g in self._layout.attention
            for old, new in zip(live.groups[g], groups[g])  # noqa: B905 - rejected drafts shorten it
            if old not in (new, NULL_BLOCK)
        ]
        for confirmed in (True, False):
            blocks = tuple(
                old for old, new in changed if bool(new or self._layout.single) == confirmed
            )
            if blocks:
                fenced = Fenced(live.request, blocks, set(live.steps), confirmed)
                self._state.fenced.append(fenced)

    # --- reusable blocks ---

    def reusable(self, step: Step, stop: int) -> int:
        """Return up to where a step makes units reusable (S1)."""
        if not self._layout.states or self._state.profile.stores == "computed":
            return stop
        return max((tokens for tokens, _, _ in step.saves if tokens <= stop), default=0)

    def store(self, live: RequestState, stop: int, before: tuple[Table, ...]) -> None:
        """Full units of a request that may write become reusable (T2).

        `before` are its tables during the step: blocks that leave the window are released when the
        step is done, and cached all the same.
        """
        unit = self._layout.unit
        end = stop // unit * unit
        if end > live.stored and self._state.may_store(live):
            for index in range(live.stored // unit, end // unit):
                self._store_unit(live, index, before)
        if not live.request.store:
            self._state.not_stored.update(live.prints[unit - 1 : end : unit].tolist())
        live.stored = max(live.stored, end)

    def _store_unit(self, live: RequestState, index: int, before: tuple[Table, ...]) -> None:
        state, layout = self._state, self._layout
        if state.profile.experts:
            rows = live.routed[index * layout.unit : (index + 1) * layout.unit]
            state.model.route(live.prints, index, complete=bool(rows.all()))
        for group in layout.attention:
            ratio = layout.unit // layout.groups[group].block_size
            for block in range(index * ratio, (index + 1) * ratio):
                if self._all or layout.reached(group, block):
                    self._store_block(live, block, group, before)

    def _store_block(
        self, live: RequestState, index: int, group: int, before: tuple[Table, ...]
    ) -> None:
        state, block = self._state, live.groups[group][index]
        if block == NULL_BLOCK and not self._layout.single:
            block = before[group][index]
            if state.model.in_pool(live.prints, index, group):
                known = state.model.key(live.prints, index, group)
                state.model.pool.touch((known,), state.recency.now)
                if state.audited:
                    freed = (block, live.prints, index, group)
                    state.changes.duplicates_freed.append(freed)
                return
        if block != NULL_BLOCK:
            state.model.store(block, live.prints, index, group)

    def publish(self, live: RequestState, step: Step, stop: int) -> None:
        """A saved checkpoint is reusable once its step is done, if all of it was accepted (S2)."""
        state = self._state
        if (not step.saves and not step.frozen) or not state.may_store(live):
            return
        frozen = self._freeze(live, step) if state.partial and step.frozen else 0
        for tokens, group, ids in step.saves:
            if tokens > stop:
                continue
            if state.partial and not frozen:
                self._supersede(live, tokens)
            keys = state.recurrent.keys(group, ids)
            state.model.store_state(keys, live.prints, tokens, group, frozen)
            if tokens > live.prompt:
                state.replaceable.update(state.model.state(live.prints, tokens, group))

    def _freeze(self, live: RequestState, step: Step) -> int:
        """A checkpoint inside a unit replaces the one before that unit (T6)."""
        state = self._state
        assert state.partial is not None
        self._supersede(live, step.stop)
        return state.partial.freeze(live.prints, step.stop, dict(step.frozen))

    def _supersede(self, live: RequestState, tokens: int) -> None:
        """Keep only the last of the checkpoints after one unit; 0 stands for no unit before."""
        state, first = self._state, self._layout.full[0]
        before = tokens // self._layout.unit * self._layout.unit
        size = self._layout.groups[first].block_size
        unit = state.model.key(live.prints, before // size - 1, first) if before else 0
        state.changes.superseded.add(unit)
